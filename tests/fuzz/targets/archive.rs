#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| b2fuse_fuzz::archive(data));
