//! What a commit did, row by row.

use crate::codes::{guard, invalid, TERRACE_OK};
use std::ffi::{c_char, c_int, c_void, CString};
use terrace_alloc::commit::{CommitReport, CommitRow};

/// The outcome of a commit. Several threads may read it at once.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_report {
    pub(crate) inner: CommitReport,
    /// Names and reasons as C has them, by row.
    texts: Vec<(CString, CString)>,
}

/// One allocation in a report. Texts live as long as the report.
#[repr(C)]
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_row {
    /// Its name; may be empty.
    pub name: *const c_char,
    /// Its address.
    pub address: *mut c_void,
    /// Bytes, in whole pages.
    pub size_bytes: u64,
    /// The preferred class.
    pub wanted_class: c_int,
    /// 1 if it is strict and did not fit; nothing was bound then.
    pub refused: c_int,
    /// Touched bytes that were moved.
    pub moved_bytes: u64,
    /// Bytes that should have moved and that the kernel did not move.
    pub stayed_bytes: u64,
    /// Bytes that were made present at once.
    pub populated_bytes: u64,
    /// Time of binding, moving and populating.
    pub cost_ns: u64,
    /// The reason for this placement.
    pub why: *const c_char,
}

impl terrace_report {
    pub(crate) fn new(inner: CommitReport) -> Self {
        let text = |s: &str| CString::new(s.replace('\0', " ")).unwrap_or_default();
        let texts = inner.rows.iter().map(|r| (text(&r.name), text(&r.why))).collect();
        Self { inner, texts }
    }

    pub(crate) fn of_row(row: CommitRow) -> Self {
        Self::new(CommitReport { rows: vec![row], ..CommitReport::default() })
    }
}

/// Returns the number of rows; 0 for null.
///
/// # Safety
/// `report` is null or comes from a function that returns one, and is not destroyed.
#[no_mangle]
pub unsafe extern "C" fn terrace_report_count(report: *const terrace_report) -> usize {
    // SAFETY: null or alive by the caller's promise.
    unsafe { report.as_ref() }.map_or(0, |r| r.inner.rows.len())
}

/// Reads row `at`, counted from 0.
///
/// # Safety
/// As for `terrace_report_count`; `out` points to a writable row.
#[no_mangle]
pub unsafe extern "C" fn terrace_report_row(
    report: *const terrace_report,
    at: usize,
    out: *mut terrace_row,
) -> c_int {
    guard(|| {
        // SAFETY: null or alive by the caller's promise.
        let Some(report) = (unsafe { report.as_ref() }) else { return invalid("report is null") };
        let (Some(row), Some((name, why))) = (report.inner.rows.get(at), report.texts.get(at))
        else {
            return invalid("there is no such row; see terrace_report_count");
        };
        if out.is_null() {
            return invalid("out is null");
        }
        let shown = terrace_row {
            name: name.as_ptr(),
            address: row.address as *mut c_void,
            size_bytes: row.size.get(),
            wanted_class: row.wanted.first().map_or(-1, |c| *c as c_int),
            refused: c_int::from(row.refused),
            moved_bytes: row.moved.get(),
            stayed_bytes: row.stayed.get(),
            populated_bytes: row.populated.get(),
            cost_ns: row.cost.get(),
            why: why.as_ptr(),
        };
        // SAFETY: not null, and writable by the caller's promise.
        unsafe { out.write(shown) };
        TERRACE_OK
    })
}

/// Returns the bytes of row `at` in a class; 0 if there is no such row or class.
///
/// # Safety
/// As for `terrace_report_count`.
#[no_mangle]
pub unsafe extern "C" fn terrace_report_got(
    report: *const terrace_report,
    at: usize,
    class_id: c_int,
) -> u64 {
    // SAFETY: null or alive by the caller's promise.
    let row = unsafe { report.as_ref() }.and_then(|r| r.inner.rows.get(at));
    let got = row.and_then(|r| r.got.iter().find(|(c, _)| c_int::try_from(*c) == Ok(class_id)));
    got.map_or(0, |(_, bytes)| bytes.get())
}

/// Reads the objective that was reached, and the bound that no placement exceeds. Either pointer
/// may be null.
///
/// # Safety
/// As for `terrace_report_count`; the pointers are null or writable.
#[no_mangle]
pub unsafe extern "C" fn terrace_report_value(
    report: *const terrace_report,
    value: *mut f64,
    bound: *mut f64,
) -> c_int {
    guard(|| {
        // SAFETY: null or alive by the caller's promise.
        let Some(report) = (unsafe { report.as_ref() }) else { return invalid("report is null") };
        for (out, number) in [(value, report.inner.value), (bound, report.inner.bound)] {
            if !out.is_null() {
                // SAFETY: not null, and writable by the caller's promise.
                unsafe { out.write(number) };
            }
        }
        TERRACE_OK
    })
}

/// Destroys a report. Null is accepted.
///
/// # Safety
/// `report` is null or comes from a function that returns one, and the caller uses neither it nor
/// its texts afterwards.
#[no_mangle]
pub unsafe extern "C" fn terrace_report_destroy(report: *mut terrace_report) {
    if !report.is_null() {
        // SAFETY: made by Box::into_raw; given back once by the caller's promise.
        drop(unsafe { Box::from_raw(report) });
    }
}
