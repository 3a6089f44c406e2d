//! How long a day is, as whoever starts it says.

use std::time::Duration;

/// How long a day is: a number with its unit, as `90s`, `30m` or `2h`; no time for one round.
pub fn asked() -> Duration {
    let Ok(text) = std::env::var("LEASEHOLD_DAY") else { return Duration::ZERO };
    parse(&text).unwrap_or_else(|| panic!("LEASEHOLD_DAY={text:?}: expected a duration like 90s, 30m or 2h"))
}

fn parse(text: &str) -> Option<Duration> {
    let (number, seconds) = [('s', 1), ('m', 60), ('h', 3600)]
        .into_iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))?;
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_a_day_is_a_number_with_a_unit() {
        let seconds = ["90s", "30m", "2h", "2d", "h", "-1s", ""].map(|text| parse(text).map(|it| it.as_secs()));
        assert_eq!(seconds, [Some(90), Some(1800), Some(7200), None, None, None, None]);
    }
}
