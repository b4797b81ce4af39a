//! The probe's own loops for bench/probe.sh: `kernels THREADS MIB_OF_ALL_ARRAYS CHASE_MIB`, first
//! node with CPUs. Prints "NAME FIGURE" as its C counterparts do.

use std::sync::atomic::AtomicBool;
use terrace_machine::{preset, Machine};
use terrace_probe::kernels::ElementKernel;
use terrace_probe::{situation, Depth, Instrument, LiveMachine, PageKind, Task};
use terrace_sys::Root;
use terrace_types::{Bytes, NodeId};

/// One node with all CPUs: enough to measure the first node of any machine.
fn whole() -> Option<Machine> {
    let mut machine = preset("lab-cxl")?;
    machine.nodes.truncate(1);
    machine.links.clear();
    machine.nodes[0].cpus = terrace_sys::own_cpus().ok()?;
    machine.nodes[0].id = NodeId(0);
    Some(machine)
}

fn main() {
    let number = |at: usize, otherwise: u64| {
        std::env::args().nth(at).and_then(|a| a.parse().ok()).unwrap_or(otherwise)
    };
    let (threads, arrays, chase) =
        (number(1, 2) as u32, Bytes::mib(number(2, 384)), Bytes::mib(number(3, 256)));
    let Some(machine) = whole() else { return eprintln!("the preset lab-cxl is missing") };
    let situation = situation(machine, &Root::live());
    let stop = AtomicBool::new(false);
    let mut live = LiveMachine::new(&situation, Depth::Full, &stop);
    let (initiator, target) = (NodeId(0), NodeId(0));
    let mut show = |name: &str, task: Task| match live.measure(&task) {
        Ok(o) => {
            let noisy = if o.figure.noisy { " noisy" } else { "" };
            println!(
                "{name} {:.3} # {} +- {:.1} of {} runs{noisy}",
                o.figure.value, o.how, o.figure.spread, o.figure.runs
            );
        }
        Err(e) => eprintln!("{name}: {e}"),
    };
    for kernel in
        ElementKernel::STREAM.into_iter().chain([ElementKernel::Read, ElementKernel::Write])
    {
        show(kernel.name(), Task::Stream { initiator, target, kernel, threads, bytes: arrays });
    }
    for (name, pages) in [("chase-huge", PageKind::Huge), ("chase-base", PageKind::Base)] {
        show(name, Task::Chase { initiator, target, pages, bytes: chase });
    }
}
