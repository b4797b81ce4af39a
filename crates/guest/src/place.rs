//! `bound:ideal-move`: the best static placement, applied once while the workload stands at its
//! mark.
//!
//! The host ranks the pages by a profiled run; how many of them fit is known only here, where the
//! occupancy is.

use crate::kernel;
use crate::stats;
use crate::wire::PlaceReport;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

/// Pages a move_pages call.
const BATCH: usize = 512;
const PAGE: u64 = 4096;

/// Where things go.
#[derive(Debug, Clone, Copy)]
pub struct Nodes {
    /// Gets the hottest pages.
    pub fast: u32,
    /// Gets what has to leave.
    pub slow: u32,
    /// Pages of the fast node that stay free above the kernel's reserve.
    pub reserve_pages: u64,
}

/// What moves, decided purely.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PlacementDecision {
    /// Leave the fast node.
    pub demote: Vec<u64>,
    /// Come to the fast node.
    pub promote: Vec<u64>,
    /// Pages of the ranking that fit.
    pub wanted: u64,
}

/// Choose: the first pages of `ranking` that exist, as many as the fast node can hold, should be
/// there. Of the others only so many leave as are needed for space (those that nobody ranked first,
/// then the coldest).
pub fn decide(
    ranking: &[u64],
    at: &HashMap<u64, i32>,
    fast: i32,
    free_pages: u64,
) -> PlacementDecision {
    let on_fast = at.values().filter(|&&n| n == fast).count() as u64;
    let budget = on_fast + free_pages;
    let wanted: Vec<u64> =
        ranking.iter().copied().filter(|p| at.contains_key(p)).take(budget as usize).collect();
    let promote: Vec<u64> = wanted.iter().copied().filter(|p| at.get(p) != Some(&fast)).collect();
    let keep: HashSet<u64> = wanted.iter().copied().collect();
    let need = (promote.len() as u64).saturating_sub(free_pages) as usize;
    let ranked: HashSet<u64> = ranking.iter().copied().collect();
    let mut cold: Vec<u64> =
        at.iter().filter(|(p, &n)| n == fast && !ranked.contains(p)).map(|(&p, _)| p).collect();
    cold.sort_unstable();
    let coldest_ranked =
        ranking.iter().rev().copied().filter(|p| at.get(p) == Some(&fast) && !keep.contains(p));
    cold.extend(coldest_ranked);
    cold.truncate(need);
    PlacementDecision { demote: cold, promote, wanted: wanted.len() as u64 }
}

/// Look where the process's pages are, decide, demote, promote.
pub fn apply(pid: i32, ranking: &[u64], nodes: Nodes) -> io::Result<PlaceReport> {
    let start = kernel::now();
    let pages = anonymous_pages(Path::new("/proc"), pid)?;
    let at = locate(pid, &pages)?;
    let free = stats::free_bytes(Path::new("/sys")).get(&nodes.fast).copied().unwrap_or(0) / PAGE;
    let reserve = stats::reserve_pages(Path::new("/proc"), nodes.fast) + nodes.reserve_pages;
    let decision = decide(ranking, &at, nodes.fast as i32, free.saturating_sub(reserve));
    let mut refused = BTreeMap::new();
    let demoted = move_all(pid, &decision.demote, nodes.slow as i32, &mut refused)?;
    let promoted = move_all(pid, &decision.promote, nodes.fast as i32, &mut refused)?;
    Ok(PlaceReport {
        wanted_pages: decision.wanted,
        demote_tried: decision.demote.len() as u64,
        demoted_pages: demoted,
        promote_tried: decision.promote.len() as u64,
        promoted_pages: promoted,
        refused,
        nanos: kernel::now() - start,
    })
}

/// Every page address in the process's private writable mappings.
fn anonymous_pages(procfs: &Path, pid: i32) -> io::Result<Vec<u64>> {
    Ok(parse_maps(&fs::read_to_string(procfs.join(pid.to_string()).join("maps"))?))
}

fn parse_maps(text: &str) -> Vec<u64> {
    let mut pages = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(perms)) = (words.next(), words.next()) else { continue };
        if !perms.starts_with("rw") || !perms.ends_with('p') {
            continue;
        }
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
        else {
            continue;
        };
        pages.extend((from..to).step_by(PAGE as usize));
    }
    pages
}

/// Node of every page that is present.
fn locate(pid: i32, pages: &[u64]) -> io::Result<HashMap<u64, i32>> {
    let mut at = HashMap::with_capacity(pages.len());
    let mut status = vec![0i32; BATCH];
    for batch in pages.chunks(BATCH) {
        kernel::move_pages(pid, batch, &[], &mut status)?;
        at.extend(batch.iter().zip(&status).filter(|(_, &s)| s >= 0).map(|(&p, &s)| (p, s)));
    }
    Ok(at)
}

fn move_all(
    pid: i32,
    pages: &[u64],
    to: i32,
    refused: &mut BTreeMap<String, u64>,
) -> io::Result<u64> {
    let nodes = vec![to; BATCH];
    let mut status = vec![0i32; BATCH];
    let mut moved = 0;
    for batch in pages.chunks(BATCH) {
        status.fill(-libc::EBUSY);
        if let Err(e) = kernel::move_pages(pid, batch, &nodes, &mut status) {
            *refused.entry(e.to_string()).or_insert(0) += batch.len() as u64;
            continue;
        }
        for &s in &status[..batch.len()] {
            if s == to {
                moved += 1;
            } else if s < 0 {
                *refused.entry(io::Error::from_raw_os_error(-s).to_string()).or_insert(0) += 1;
            } else {
                *refused.entry(format!("stayed on node {s}")).or_insert(0) += 1;
            }
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pages: &[(u64, i32)]) -> HashMap<u64, i32> {
        pages.iter().copied().collect()
    }

    #[test]
    fn swaps_what_has_to_be_swapped_and_no_more() {
        // Fast node 0 holds 10, 11, 12; one page is free; hot are 20, 21, 11.
        let places = at(&[(10, 0), (11, 0), (12, 0), (20, 1), (21, 1), (22, 1)]);
        let d = decide(&[20, 21, 11, 12, 22], &places, 0, 1);
        assert_eq!(d.wanted, 4);
        assert_eq!(d.promote, vec![20, 21]);
        // One of the two comes into the free page; for the other the unranked 10 goes, not the
        // ranked 12.
        assert_eq!(d.demote, vec![10]);
    }

    #[test]
    fn the_coldest_ranked_page_leaves_when_no_unranked_is_left() {
        let places = at(&[(1, 0), (2, 0), (3, 1)]);
        let d = decide(&[3, 1, 2], &places, 0, 0);
        assert_eq!(d, PlacementDecision { demote: vec![2], promote: vec![3], wanted: 2 });
    }

    #[test]
    fn nothing_to_do_is_nothing() {
        let places = at(&[(1, 0), (2, 1)]);
        assert_eq!(
            decide(&[1], &places, 0, 0),
            PlacementDecision { demote: vec![], promote: vec![], wanted: 1 }
        );
        assert_eq!(decide(&[], &places, 0, 5), PlacementDecision::default());
    }

    #[test]
    fn maps_lines() {
        let text = "00400000-00402000 rw-p 00000000 00:00 0\n00500000-00501000 r--p 0 00:00 0\n\
                    7000-8000 rw-s 0 00:01 5 /dev/zero\nbad\n";
        assert_eq!(parse_maps(text), vec![0x40_0000, 0x40_1000]);
    }
}
