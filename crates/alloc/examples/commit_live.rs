//! How long a commit of many untouched allocations takes on this machine, deciding and binding
//! apart, and the CPU time of both together, which a busy host does not change so much. Figures for
//! a person to read; `cargo run --release -p terrace-alloc --example commit_live [ALLOCATIONS]`.

use terrace_alloc::attributes::{Attributes, Binding};
use terrace_alloc::commit::Scope;
use terrace_alloc::memory::Memory;
use terrace_sys::thread_cpu;
use terrace_types::{Bytes, Nanos, Seed};

fn main() -> Result<(), terrace_alloc::error::AllocError> {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let memory = Memory::live(&|name| std::env::var(name).ok())?;
    let mut seed = Seed(1);
    for _ in 0..count {
        let (x, next) = seed.next();
        seed = next;
        let wish = Attributes {
            binding: Binding::OnCommit,
            priority: 1 + (x % 4) as u32,
            reads: 1.0 + (x >> 8 & 0xffff) as f64,
            ..Attributes::default()
        };
        memory.allocate(Bytes(4096 * (1 + (x >> 32) % 512)), wish)?;
    }
    for _ in 0..5 {
        let before = thread_cpu();
        let report = memory.commit(Scope::All)?;
        println!(
            "{} allocations: weighed in {}, placed in {}, CPU {}, {:.5} of the bound",
            report.rows.len(),
            report.decided_in,
            report.applied_in,
            Nanos(thread_cpu().get().saturating_sub(before.get())),
            report.value / report.bound
        );
    }
    Ok(())
}
