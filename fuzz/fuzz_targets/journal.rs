//! Arbitrary bytes as the journal of a managed run (or a comparison, or what a probe printed): they
//! are refused in one line, or all forms of the report can be made.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_report::read;

fuzz_target!(|data: &[u8]| match read(data) {
    Ok(document) => {
        let html = document.to_html();
        assert!(html.starts_with("<!DOCTYPE html>") && !html.contains("NaN"));
        let _text = document.to_text(80);
        assert!(document.to_json().is_object());
    }
    Err(why) => assert!(!why.to_string().contains('\n')),
});
