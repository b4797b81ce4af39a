//! What allocations got, held against where the kernel says that their pages are: `residency`. For
//! machines with two classes of memory and more, the lab's above all (`scripts/ring3.sh`). Ends
//! with 1 where a page is not where the report has it.

use std::error::Error;
use terrace_alloc::attributes::{Attributes, Binding, ClassId, Mismatch};
use terrace_alloc::commit::{CommitRow, Scope};
use terrace_alloc::memory::Memory;
use terrace_sys::{page_size, query_pages, PageStatus};
use terrace_types::{Bytes, Pid, Vpn};

fn main() -> Result<(), Box<dyn Error>> {
    let memory = Memory::live(&|name| std::env::var(name).ok())?;
    let classes = memory.classes().list.len();
    if classes < 2 {
        return Err("this machine has one class of memory; run it on one with two".into());
    }
    by_class(&memory)?;
    strict(&memory)?;
    committed(&memory)?;
    println!("{classes} classes: all pages are where the reports say");
    Ok(())
}

/// Asked for at once, class by class.
fn by_class(memory: &Memory) -> Result<(), Box<dyn Error>> {
    for class in 0..memory.classes().list.len() {
        let at = memory.allocate(Bytes::mib(8), Attributes::in_class(ClassId(class as i16)))?;
        touch(at, Bytes::mib(8));
        expect(memory, &memory.describe(at)?, class, Bytes::mib(8))?;
        memory.free(at)?;
    }
    Ok(())
}

/// With `ERROR`: there before it is touched; what is larger than the class is refused.
fn strict(memory: &Memory) -> Result<(), Box<dyn Error>> {
    let wish = || Attributes { mismatch: Mismatch::Error, ..Attributes::default() };
    let at = memory.allocate(Bytes::mib(16), wish())?;
    expect(memory, &memory.describe(at)?, 0, Bytes::mib(16))?;
    memory.free(at)?;
    match memory.allocate(Bytes::gib(64), wish()) {
        Err(error) => println!("64 GiB: {error}"),
        Ok(_) => return Err("64 GiB were accepted".into()),
    }
    Ok(())
}

/// Three arrays that do not fit the best class together: the one with priority lies there, the
/// others share what is left.
fn committed(memory: &Memory) -> Result<(), Box<dyn Error>> {
    let best = &memory.classes().list[0].nodes;
    let zones = terrace_sys::zones::zones(&terrace_sys::Root::live())?;
    let free: Bytes =
        best.iter().map(|n| terrace_sys::zones::free_memory(&zones, *n, page_size()).free).sum();
    let each = Bytes((free.get() / 2) >> 21 << 21);
    for (name, priority) in [("a", 2), ("b", 1), ("c", 1)] {
        let wish = Attributes {
            binding: Binding::OnCommit,
            priority,
            name: name.into(),
            ..Attributes::default()
        };
        memory.allocate(each, wish)?;
    }
    let report = memory.commit(Scope::Epoch)?;
    for row in &report.rows {
        touch(row.address, row.size);
    }
    for row in &report.rows {
        println!("{}: {:?}; {}", row.name, row.got, row.why);
        let fast = row
            .got
            .first()
            .filter(|(class, _)| *class == 0)
            .map_or(Bytes::ZERO, |(_, bytes)| *bytes);
        let share = fast.get() as f64 / each.get() as f64;
        let wanted = if row.name == "a" { 1.0..=1.0 } else { 0.35..=0.65 };
        if !wanted.contains(&share) {
            return Err(format!("{} has {share:.2} of its bytes in class 0", row.name).into());
        }
        expect(memory, row, 0, fast)?;
    }
    Ok(())
}

fn touch(at: usize, size: Bytes) {
    for page in (at..at + size.get() as usize).step_by(page_size().get() as usize) {
        // SAFETY: an allocation of this size, nobody else's.
        unsafe { (page as *mut u8).write_volatile(1) };
    }
}

/// `bytes` of the allocation are in `class`, as the kernel has it. Others who take memory meanwhile
/// may have a hundredth.
fn expect(
    memory: &Memory,
    row: &CommitRow,
    class: usize,
    bytes: Bytes,
) -> Result<(), Box<dyn Error>> {
    let page = page_size().get();
    let first = row.address as u64 / page;
    let pages: Vec<Vpn> = (first..first + row.size.get() / page).map(Vpn).collect();
    let found = query_pages(Pid(std::process::id() as i32), &pages)?;
    let nodes = &memory.classes().list[class].nodes;
    let there =
        found.iter().filter(|s| matches!(s, PageStatus::On(node) if nodes.contains(node))).count()
            as u64
            * page;
    if there.abs_diff(bytes.get()) > row.size.get() / 100 {
        return Err(format!(
            "{} of {} bytes are in class {class}, and {bytes} should be",
            there,
            row.size.get()
        )
        .into());
    }
    Ok(())
}
