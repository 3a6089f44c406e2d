//! Tests tell a stall of the machine from a broken promise.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
    time::Duration,
};

use crate::{
    alone,
    common::{
        ALLOWANCE, Missed, Process,
        stall::{check, check_while, measured},
    },
};

/// The message of a panic.
fn panic_of(act: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(act)).expect_err("it panics");
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| panic.downcast_ref::<&str>().expect("text").to_string())
}

#[test]
fn a_bound_missed_on_a_machine_that_runs_is_a_failure() {
    let _alone = alone();
    let mut tries = 0;
    let said = panic_of(|| {
        measured(|| {
            tries += 1;
            Err::<(), _>(Missed("a write took 9 s".to_owned()))
        });
    });
    assert!(tries == 1 && said.starts_with("a write took 9 s; the machine stood still for "), "{tries} tries: {said}");
}

#[test]
fn a_duration_is_checked_with_an_allowance_above_none_below() {
    let (least, most) = (Duration::from_secs(2), Duration::from_secs(3));
    let check = |took| check("a write is done", took, least, most);
    assert_eq!(check(least), Ok(()));
    assert_eq!(check(most + ALLOWANCE), Ok(()));
    let Missed(said) = check(most + ALLOWANCE + Duration::from_millis(1)).expect_err("it is too long");
    assert_eq!(said, "a write is done after 4.001s: expected at most 3.000s, and 1.000s for the machine");
    let said = panic_of(|| drop(check(least - Duration::from_millis(1))));
    assert_eq!(said, "a write is done after 1.999s: expected at least 2.000s");
}

#[test]
fn a_machine_adds_what_it_stood_still_and_an_allowance_at_most() {
    let (most, ms) = (Duration::from_secs(3), Duration::from_millis);
    let check = |stood_still, took| check_while(stood_still, "a write is done", took, Duration::ZERO, most);
    assert_eq!(check(Duration::ZERO, most), Ok(()));
    assert_eq!(check(ms(200), most + ms(200)), Ok(()));
    let Missed(said) = check(ms(200), most + ms(201)).expect_err("it is too long");
    assert_eq!(said, "a write is done after 3.201s: expected at most 3.000s, and 200.000ms for the machine");
    check(2 * ALLOWANCE, most + ALLOWANCE + ms(1)).expect_err("it is too long");
}

/// A process that this test pauses. For the process, the machine seems to stall.
#[test]
fn a_machine_that_stands_still_is_noticed_and_measured_again() {
    const MARK: &str = "LEASEHOLD_TEST_STALLS";
    let _alone = alone();
    if std::env::var_os(MARK).is_some() {
        let mut tries = 0;
        let tries = measured(|| {
            tries += 1;
            // Until it was paused once, and resumed.
            let input = (tries == 1).then(|| std::io::stdin().lines().next().expect("a line").expect("text"));
            if input.is_some() { Err(Missed("it was stopped".to_owned())) } else { Ok(tries) }
        });
        assert_eq!(tries, 2);
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("a test binary"));
    let name = "stalls::a_machine_that_stands_still_is_noticed_and_measured_again";
    command.args([name, "--exact", "--nocapture"]).env(MARK, "1").stdin(std::process::Stdio::piped());
    let mut child = Process::of(command.spawn().expect("it starts"));
    let mut input = child.take_input().expect("it is piped");
    crate::common::eventually("it measures", || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", child.id())).expect("it runs");
        // The program's own thread, the test's, and the one that watches.
        (threads.count() >= 3).then_some(())
    });
    child.pause(true);
    std::thread::sleep(ALLOWANCE + Duration::from_millis(500));
    child.pause(false);
    std::io::Write::write_all(&mut input, b"go on\n").expect("it reads");
    assert!(child.ended().success(), "it did not measure again");
}
