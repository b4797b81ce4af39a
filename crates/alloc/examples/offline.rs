//! What becomes of allocations and an arena when most of their node is taken offline, and when it
//! comes back: `offline CLASS`. Takes memory offline and online through sysfs, so it needs root and
//! a machine that nobody else uses: the lab's (`scripts/ring3.sh`). Ends with 1 where data is lost,
//! a report is wrong, or what can no longer be had is promised.

use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use terrace_alloc::arena::{Arena, ArenaSpec, Devices, Strictness};
use terrace_alloc::attributes::{Attributes, Binding, ClassId, Mismatch};
use terrace_alloc::commit::{CommitRow, Scope};
use terrace_alloc::error::AllocError;
use terrace_alloc::memory::Memory;
use terrace_sys::{page_size, query_pages, PageStatus};
use terrace_types::{Bytes, NodeId, Pid, Vpn};

/// Of each of what is touched beforehand: the rest of the machine can take it.
const BLOCK_BYTES: Bytes = Bytes::mib(24);

fn main() -> Result<(), Box<dyn Error>> {
    let class: i16 = std::env::args().nth(1).ok_or("usage: offline CLASS")?.parse()?;
    let memory = Memory::live(&|name| std::env::var(name).ok())?;
    let nodes =
        memory.classes().list.get(usize::try_from(class)?).ok_or("no such class")?.nodes.clone();
    let node = *nodes.first().ok_or("a class without nodes")?;
    let of = |mismatch, binding| Attributes {
        mismatch,
        binding,
        ..Attributes::in_class(ClassId(class))
    };

    let object = memory.allocate(BLOCK_BYTES, of(Mismatch::Error, Binding::Immediate))?;
    fill(object, BLOCK_BYTES, 3);
    let arena =
        Arena::create(&ArenaSpec { devices: Devices::Only(vec![node]), ..ArenaSpec::default() })?;
    let block = arena.alloc(BLOCK_BYTES.get() as usize)?.as_ptr() as usize;
    fill(block, BLOCK_BYTES, 5);
    let large = Bytes(free(node)?.get() * 3 / 4);
    let waiting = memory.allocate(large, of(Mismatch::Error, Binding::OnCommit))?;

    let blocks = take_offline(node)?;
    let left = free(node)?;
    println!("{} blocks of node {} are offline, {left} are left", blocks.len(), node.0);
    if left >= large {
        return Err(format!("{left} of node {} are left: too much for this test", node.0).into());
    }

    intact(object, BLOCK_BYTES, 3)?;
    intact(block, BLOCK_BYTES, 5)?;
    check_placement(&memory, &memory.describe(object)?)?;
    println!("the arena: {:?}", arena.residency()?.nodes);
    match memory.allocate(large, of(Mismatch::Error, Binding::Immediate)) {
        Err(error @ AllocError::NoSpace { .. }) => println!("{large}: {error}"),
        other => return Err(format!("{large} where {left} are left: {other:?}").into()),
    }
    let report = memory.commit(Scope::Epoch)?;
    let row = report
        .rows
        .iter()
        .find(|row| row.address == waiting)
        .ok_or("no row for what was waiting")?;
    println!("commit: {}", row.why);
    if !row.refused {
        return Err(format!("{large} were promised where {left} are left: {row:?}").into());
    }
    let moved = arena.set_device(&Devices::Only(vec![node]), Strictness::Partial)?;
    println!("set_device: {moved}");
    intact(block, BLOCK_BYTES, 5)?;
    let small = memory.allocate(Bytes::mib(4), of(Mismatch::Fallback, Binding::Immediate))?;
    fill(small, Bytes::mib(4), 7);
    check_placement(&memory, &memory.describe(small)?)?;

    for block in &blocks {
        fs::write(block, "online")?;
    }
    let again = memory.allocate(large, of(Mismatch::Error, Binding::Immediate))?;
    fill(again, large, 9);
    check_placement(&memory, &memory.describe(again)?)?;
    intact(object, BLOCK_BYTES, 3)?;
    intact(again, large, 9)?;
    println!("online again: {large} were had");
    Ok(())
}

/// Those blocks of the node's memory that the kernel lets go.
fn take_offline(node: NodeId) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut gone = Vec::new();
    for entry in fs::read_dir(format!("/sys/devices/system/node/node{}", node.0))? {
        let state = entry?.path().join("state");
        if state.is_file() && fs::write(&state, "offline").is_ok() {
            gone.push(fs::canonicalize(state)?);
        }
    }
    Ok(gone)
}

fn free(node: NodeId) -> Result<Bytes, Box<dyn Error>> {
    let zones = terrace_sys::zones::zones(&terrace_sys::Root::live())?;
    Ok(terrace_sys::zones::free_memory(&zones, node, page_size()).free)
}

fn pages(at: usize, size: Bytes) -> impl Iterator<Item = usize> {
    (at..at + size.get() as usize).step_by(page_size().get() as usize)
}

/// Another value for each page.
fn value(at: usize, seed: u64) -> u64 {
    (at as u64).wrapping_mul(seed | 1)
}

fn fill(at: usize, size: Bytes, seed: u64) {
    // SAFETY: an allocation of this size, nobody else's.
    pages(at, size)
        .for_each(|page| unsafe { (page as *mut u64).write_volatile(value(page, seed)) });
}

fn intact(at: usize, size: Bytes, seed: u64) -> Result<(), Box<dyn Error>> {
    // SAFETY: an allocation of this size that was filled, nobody else's.
    let lost = pages(at, size)
        .find(|page| unsafe { (*page as *const u64).read_volatile() } != value(*page, seed));
    lost.map_or(Ok(()), |page| Err(format!("the page at {page:#x} lost its data").into()))
}

/// Bytes by class are those that the kernel says.
fn check_placement(memory: &Memory, row: &CommitRow) -> Result<(), Box<dyn Error>> {
    let page = page_size().get();
    let range: Range<u64> = row.address as u64 / page..(row.address as u64 + row.size.get()) / page;
    let found = query_pages(Pid(std::process::id() as i32), &range.map(Vpn).collect::<Vec<_>>())?;
    for (class, reported) in &row.got {
        let nodes = &memory.classes().list[*class].nodes;
        let there = found
            .iter()
            .filter(|s| matches!(s, PageStatus::On(node) if nodes.contains(node)))
            .count() as u64;
        if (there * page).abs_diff(reported.get()) > row.size.get() / 100 {
            return Err(format!(
                "{reported} in class {class}, the kernel says {}: {row:?}",
                Bytes(there * page)
            )
            .into());
        }
    }
    println!("{}: {:?}; {}", row.size, row.got, row.why);
    Ok(())
}
