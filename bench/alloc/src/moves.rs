//! Moving an arena against one perfectly batched `move_pages` on the same pages.

use terrace_alloc::arena::{Arena, Devices, KernelNodes, NodeOps, ArenaSpec, Strictness};
use terrace_types::{Pid, Vpn, VpnRange};

/// Seconds of both, as medians of `rounds`, as JSON; or why not.
pub fn compare(bytes: usize, rounds: usize) -> Result<String, String> {
    let nodes = KernelNodes.nodes();
    let [one, two, ..] = nodes[..] else {
        return Err(format!("this machine has {} memory node; moving needs two", nodes.len()));
    };
    let spec = ArenaSpec { devices: Devices::Only(vec![one]), ..ArenaSpec::default() };
    let arena = Arena::create(&spec).map_err(|e| e.to_string())?;
    let block = arena.alloc(bytes).map_err(|e| e.to_string())?;
    // SAFETY: a fresh block of that size.
    unsafe { block.as_ptr().write_bytes(1, bytes) };
    let page = terrace_sys::page_size().get();
    let first = block.as_ptr() as u64 / page;
    let pages: Vec<Vpn> =
        VpnRange::new(Vpn(first), Vpn(first + bytes as u64 / page)).into_iter_pages();
    let me = Pid(std::process::id() as i32);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = terrace_sys::now();
        arena
            .set_device(&Devices::Only(vec![two]), Strictness::Partial)
            .map_err(|e| e.to_string())?;
        ours.push(terrace_sys::now().since(start).get());
        let start = terrace_sys::now();
        let call = terrace_sys::move_pages(me, &pages, one);
        theirs.push(terrace_sys::now().since(start).get());
        if call.errno != 0 {
            return Err(format!("move_pages failed (errno {})", call.errno));
        }
    }
    ours.sort_unstable();
    theirs.sort_unstable();
    let (ours, theirs) = (ours[rounds / 2], theirs[rounds / 2]);
    Ok(format!(
        "{{\"bytes\":{bytes},\"arena_ns\":{ours},\"move_pages_ns\":{theirs},\"ratio\":{:.3}}}",
        theirs as f64 / ours as f64
    ))
}

trait Pages {
    fn into_iter_pages(self) -> Vec<Vpn>;
}

impl Pages for VpnRange {
    fn into_iter_pages(self) -> Vec<Vpn> {
        (self.start.0..self.end.0).map(Vpn).collect()
    }
}
