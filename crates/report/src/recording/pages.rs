//! Pages by process and number, found quickly: nearly every access is to a page that was used a
//! moment ago.

use super::{UseCounts, COLUMNS};
use crate::heatmap::{rows, AddressStretch};
use std::collections::HashMap;

/// Pages this far apart or less are shown as one stretch of addresses.
const GAP: u64 = 64;
const REMEMBERED: usize = 4096;

/// A page and its uses.
#[derive(Debug, Clone)]
pub struct PageUse {
    process: u32,
    number: u64,
    pub uses: UseCounts,
    /// Time of its last use.
    pub last: u64,
    /// A bit a column of time in which it was used.
    pub columns: [u64; COLUMNS.div_ceil(64)],
    /// Row of the heat map.
    pub row: u32,
    /// The object it belonged to when `epoch` was the last change of any.
    pub object: u32,
    pub epoch: u32,
}

#[derive(Debug)]
pub struct PageUses {
    index: HashMap<(u32, u64), u32>,
    list: Vec<PageUse>,
    /// Process, number and place in the list of pages used lately.
    lately: Vec<(u32, u64, u32)>,
}

impl Default for PageUses {
    fn default() -> Self {
        Self { index: HashMap::new(), list: Vec::new(), lately: vec![(0, u64::MAX, 0); REMEMBERED] }
    }
}

impl PageUses {
    pub fn find(&mut self, process: u32, number: u64) -> &mut PageUse {
        let slot = (number ^ u64::from(process) << 7) as usize % REMEMBERED;
        let (p, n, at) = self.lately[slot];
        if (p, n) == (process, number) {
            return &mut self.list[at as usize];
        }
        let at = *self.index.entry((process, number)).or_insert_with(|| {
            self.list.push(PageUse {
                process,
                number,
                uses: UseCounts::default(),
                last: 0,
                columns: Default::default(),
                row: u32::MAX,
                object: 0,
                epoch: u32::MAX,
            });
            self.list.len() as u32 - 1
        });
        self.lately[slot] = (process, number, at);
        &mut self.list[at as usize]
    }

    pub fn all(&self) -> &[PageUse] {
        &self.list
    }

    /// The heat map's rows, lowest address first; every page learns its own.
    pub fn rows(&mut self) -> Vec<AddressStretch> {
        let mut order: Vec<u32> = (0..self.list.len() as u32).collect();
        order.sort_unstable_by_key(|i| {
            (self.list[*i as usize].process, self.list[*i as usize].number)
        });
        let mut stretches: Vec<AddressStretch> = Vec::new();
        for i in &order {
            let page = &self.list[*i as usize];
            let (pid, end) = (page.process as i32, page.number.saturating_add(1));
            match stretches.last_mut() {
                Some(last) if last.pid == pid && page.number.saturating_sub(last.end) <= GAP => {
                    last.end = end
                }
                _ => stretches.push(AddressStretch { pid, start: page.number, end }),
            }
        }
        let rows = rows(&stretches);
        for page in &mut self.list {
            let row =
                rows.partition_point(|r| (r.pid, r.end) <= (page.process as i32, page.number));
            let inside = rows
                .get(row)
                .is_some_and(|r| r.pid == page.process as i32 && r.start <= page.number);
            page.row = if inside { row as u32 } else { u32::MAX };
        }
        rows
    }
}
