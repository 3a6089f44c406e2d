//! What a panic does to the process.

use std::{panic, process};

/// Makes a panic in any thread or task end this process, after its message.
///
/// A panic in the rules, or in another task, leaves the server half changed. Its later answers
/// could not be trusted. Everything that it acknowledged is on the disks of a majority, and it
/// takes part again after a restart. `leasehold serve` calls this. A program that runs a
/// [`Server`](crate::Server) by itself should call it too.
pub fn end_process_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        report(panicked);
        tracing::error!(
            "{panicked}: this is a mistake in the server, whose process ends: start it again, and report this line"
        );
        process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    /// The environment variable that makes the child process panic.
    const PANICS: &str = "LEASEHOLD_TEST_PANICS";

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn panic_in_a_task_ends_the_process() {
        if env::var_os(PANICS).is_some() {
            end_process_on_panic();
            let task = tokio::spawn(async { panic!("half done") });
            let ended = task.await;
            println!("the process goes on: {ended:?}");
            return;
        }
        let program = env::current_exe().expect("this program");
        let name = "panic::tests::panic_in_a_task_ends_the_process";
        let ran = Command::new(program).args([name, "--exact", "--nocapture"]).env(PANICS, "1").output();
        let ran = ran.expect("it runs");
        let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert_eq!(ran.status.signal(), Some(6), "SIGABRT: {:?}, {said}", ran.status);
        assert!(said.contains("half done") && !said.contains("goes on"), "{said}");
    }
}
