//! Splits a line into words as a shell does. Blanks separate words; quotes and backslashes join.
//!
//! Within `'…'` each character is literal. Within `"…"` a backslash escapes only `"` and `\`;
//! outside quotes it escapes any character. There are no variables and no patterns. A word that
//! begins with `#` begins a comment.

/// The error of a line that cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WordsError {
    /// A quote is not closed.
    #[error("quote {quote} at character {at}: not closed")]
    Quote {
        quote: char,
        /// The position of its character, from 1.
        at: usize,
    },
    /// The line ends with a backslash.
    #[error("backslash at the end of the line: no character follows")]
    Backslash,
}

/// Splits a line into words.
pub(crate) fn split(line: &str) -> Result<Vec<String>, WordsError> {
    let mut words = Vec::new();
    // `None` between words. A quoted empty word is `Some`.
    let mut word: Option<String> = None;
    let mut rest = line.chars().enumerate();
    while let Some((at, c)) = rest.next() {
        match c {
            '\'' | '"' => {
                let quoted = quoted(c, &mut rest).ok_or(WordsError::Quote { quote: c, at: at + 1 })?;
                word.get_or_insert_default().push_str(&quoted);
            }
            '\\' => word.get_or_insert_default().push(rest.next().ok_or(WordsError::Backslash)?.1),
            '#' if word.is_none() => break,
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// The text before the closing quote. `None` if the quote is not closed.
fn quoted(quote: char, rest: &mut impl Iterator<Item = (usize, char)>) -> Option<String> {
    let mut text = String::new();
    loop {
        match rest.next()?.1 {
            c if c == quote => return Some(text),
            '\\' if quote == '"' => match rest.next()?.1 {
                c @ ('"' | '\\') => text.push(c),
                c => text.extend(['\\', c]),
            },
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_separate_and_quotes_keep_together() {
        let cases: [(&str, &[&str]); 7] = [
            ("  put /a   1 ", &["put", "/a", "1"]),
            ("put /a 'two words'", &["put", "/a", "two words"]),
            (r#"put /a "a \"b\" \n c\\""#, &["put", "/a", r#"a "b" \n c\"#]),
            (r"put /a\ b ''", &["put", "/a b", ""]),
            ("get /a # what follows is said to people", &["get", "/a"]),
            ("put /a#b x'y'z", &["put", "/a#b", "xyz"]),
            (" # nothing", &[]),
        ];
        for (line, words) in cases {
            assert_eq!(split(line).as_deref(), Ok(words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>().as_slice()));
        }
    }

    #[test]
    fn a_line_that_ends_too_early_is_refused() {
        assert_eq!(split("put /a 'x"), Err(WordsError::Quote { quote: '\'', at: 8 }));
        assert_eq!(split(r"put /a x\"), Err(WordsError::Backslash));
        assert_eq!(split(r#"put "x\"#), Err(WordsError::Quote { quote: '"', at: 5 }));
    }
}
