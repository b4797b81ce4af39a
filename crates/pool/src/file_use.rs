//! Which hosts touch and write the pages of files that the pools hold: who may not, and where
//! nobody keeps the caches of several hosts coherent.

use crate::manager::PoolFrame;
use serde::Serialize;
use std::collections::BTreeMap;

/// A page of a file that a host has touched for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileTouch {
    pub file: u32,
    pub page: u64,
    /// Where the host believes it to be.
    pub at: PoolFrame,
}

/// A page that one host wrote while another had it mapped, without a lock between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnguardedPage {
    /// The file.
    pub file: u32,
    /// Its page, from 0.
    pub page: u64,
    /// A host that wrote it.
    pub writer: String,
    /// Another that touched it, and may have found an older value.
    pub other: String,
}

/// What became of pages of files that several hosts have mapped.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SharedFileUse {
    /// Pages that more than one host touched.
    pub shared_pages: u64,
    /// Of them, those that a host wrote: caches are not kept coherent, so that others may have read
    /// older values.
    pub unguarded_pages: u64,
    /// The first of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_unguarded_page: Option<UnguardedPage>,
    /// Pages that hosts touched without leave, since nobody checks.
    pub trespassed_pages: u64,
}

/// A bit for each host.
#[derive(Debug, Clone, Copy, Default)]
struct PageHosts {
    touched: u64,
    written: u64,
    trespassed: u64,
}

/// Touches and writes so far, by file and page.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileUseRecord(BTreeMap<(u32, u64), PageHosts>);

impl FileUseRecord {
    /// `host` (below 64) has touched the page; `allowed`: the manager knows it.
    pub fn touch(&mut self, host: usize, touch: &FileTouch, allowed: bool) {
        let hosts = self.0.entry((touch.file, touch.page)).or_default();
        hosts.touched |= 1 << host;
        hosts.trespassed |= u64::from(!allowed) << host;
    }

    /// `host` has written these pages, at some time.
    pub fn write(&mut self, host: usize, pages: &[(u32, u64)]) {
        for page in pages {
            self.0.entry(*page).or_default().written |= 1 << host;
        }
    }

    /// All of it, with the hosts' names.
    pub fn sum_up(&self, name: impl Fn(usize) -> String) -> SharedFileUse {
        let mut found = SharedFileUse::default();
        for ((file, page), hosts) in &self.0 {
            found.trespassed_pages += u64::from(hosts.trespassed.count_ones());
            if hosts.touched.count_ones() < 2 {
                continue;
            }
            found.shared_pages += 1;
            if hosts.written == 0 {
                continue;
            }
            found.unguarded_pages += 1;
            let writer = hosts.written.trailing_zeros();
            let other = (hosts.touched & !(1 << writer)).trailing_zeros();
            found.first_unguarded_page.get_or_insert_with(|| UnguardedPage {
                file: *file,
                page: *page,
                writer: name(writer as usize),
                other: name(other as usize),
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_unguarded_where_one_host_writes_and_another_touches() {
        let mut record = FileUseRecord::default();
        let touch = |page| FileTouch { file: 7, page, at: PoolFrame { pool: 0, frame: page } };
        for (host, page) in [(0, 1), (63, 1), (0, 2), (1, 2), (5, 3), (2, 4), (1, 4)] {
            record.touch(host, &touch(page), host != 63);
        }
        // Page 1 is read only, page 3 one host's alone.
        record.write(5, &[(7, 3)]);
        record.write(2, &[(7, 4)]);
        record.write(1, &[(7, 2), (7, 4)]);
        let found = record.sum_up(|host| format!("h{host}"));
        assert_eq!((found.shared_pages, found.unguarded_pages, found.trespassed_pages), (3, 2, 1));
        let first = found.first_unguarded_page.unwrap();
        let expected = UnguardedPage { file: 7, page: 2, writer: "h1".into(), other: "h0".into() };
        assert_eq!(first, expected);
    }
}
