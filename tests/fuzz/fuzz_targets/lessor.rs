//! See `leasehold_fuzz::lessor`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| leasehold_fuzz::lessor::run(data));
