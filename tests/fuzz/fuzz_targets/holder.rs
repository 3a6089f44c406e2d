//! See `leasehold_fuzz::holder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| leasehold_fuzz::holder::run(data));
