//! The engine's ports onto a [`World`]: what is live a system call is here a look at the model, at the cost that the
//! call has.

mod costs;
mod damon;
mod journal;
mod mover;
mod page_table;
mod pebs;
mod runs;
mod soft_dirty;
mod target;

pub use damon::DamonScan;
pub use journal::SimJournal;
pub use mover::SimMover;
pub use page_table::PageTableScan;
pub use pebs::PebsScan;
pub use soft_dirty::SoftDirtyScan;
pub use target::SimTarget;

use crate::world::World;
use std::cell::RefCell;
use std::rc::Rc;
use terrace_engine::Clock;
use terrace_types::{Nanos, Pid, Tick};

/// The world that the ports share. One thread has it all.
pub type Shared = Rc<RefCell<World>>;

/// The program's process.
pub const PID: Pid = Pid(100);

/// The world's time.
#[derive(Debug)]
pub struct SimClock(pub Shared);

impl Clock for SimClock {
    fn now(&self) -> Tick {
        self.0.borrow().now()
    }

    fn wait(&mut self, span: Nanos) {
        self.0.borrow_mut().pass(span);
    }
}

/// The manager's CPU time as the engine asks for it: before and after it decides. What deciding costs is charged in
/// between, by the pages there are.
pub fn own_cpu(world: &Shared) -> Box<dyn FnMut() -> Nanos> {
    let world = world.clone();
    let mut deciding = false;
    Box::new(move || {
        let mut world = world.borrow_mut();
        if deciding {
            let pages = world.memory.pages.len() as u64;
            world.charge(costs::deciding(pages));
        }
        deciding = !deciding;
        world.manager_cpu()
    })
}
