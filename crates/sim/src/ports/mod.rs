//! The engine's ports onto a [`World`]: what is live a system call is here a sample of the model,
//! at the cost that the call has.

mod damon;
mod journal;
mod mover;
mod page_table;
mod pebs;
mod soft_dirty;
mod target;

pub use damon::DamonScan;
pub use journal::SimJournal;
pub use mover::SimMover;
pub use page_table::PageTableScan;
pub use pebs::{PebsScan, PebsSettings};
pub use soft_dirty::SoftDirtyScan;
pub use target::SimTarget;

use crate::costs::Visit;
use crate::world::World;
use std::cell::RefCell;
use std::rc::Rc;
use terrace_engine::Clock;
use terrace_types::{Nanos, Pid, PolicyWork, Tick, VpnRange};

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
        let mut world = self.0.borrow_mut();
        world.sleep(span);
        world.take_turn();
    }
}

/// The daemon's CPU time as the engine asks for it, before and after each part of a step. What was
/// to be done in between is charged when it asks for the second time: what the ports showed is
/// merged, and the policy did the work that the engine reports.
pub fn own_cpu(world: &Shared) -> Box<dyn FnMut(PolicyWork) -> Nanos> {
    let world = world.clone();
    let mut after = false;
    Box::new(move |policy| {
        let mut world = world.borrow_mut();
        if after {
            let work = std::mem::take(&mut world.daemon.work);
            if let Some(visit) = work.visit(&world.costs) {
                visit_all(&mut world, visit);
            }
        }
        if policy != PolicyWork::default() {
            let span = world.costs.policy(&policy);
            world.charge(span);
        }
        after = !after;
        world.daemon_cpu()
    })
}

/// The daemon goes over all pages of the program.
fn visit_all(world: &mut World, visit: Visit) {
    let mappings: Vec<VpnRange> = world.memory.mappings().collect();
    world.visit(mappings.iter().flat_map(|range| range.start.0..range.end.0), visit);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{FirstTouchPlacement, MachineMode, SimSetup};
    use crate::costs::EngineInput;

    #[test]
    fn what_was_not_shown_is_not_charged() {
        let plan = SimSetup::new(
            &terrace_machine::preset("lab-cxl").unwrap(),
            "skew,accesses=50k,size=2MiB",
        )
        .unwrap();
        let world: Shared = Rc::new(RefCell::new(
            plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest).unwrap(),
        ));
        world.borrow_mut().pass(Nanos::millis(1));
        let pages = world.borrow().memory.pages.len() as u64;
        let costs = world.borrow().costs;
        let times = |visit: Visit, n: u64| visit.worked(n * pages);
        let mut cpu = own_cpu(&world);
        let mut step = |work: &[EngineInput]| {
            let before = cpu(PolicyWork::default());
            work.iter().for_each(|w| world.borrow_mut().show(*w));
            cpu(PolicyWork::default()).saturating_sub(before)
        };
        assert!(pages > 0);
        assert_eq!(step(&[]), Nanos::ZERO);
        let is =
            |foreseen, samples, writes| EngineInput { foreseen, samples, writes, located: false };
        let (foreseen, decided) = (
            step(&[is(true, false, false)]),
            step(&[is(false, true, false), is(true, false, false)]),
        );
        let both = step(&[is(false, true, false), is(false, false, true)]);
        assert!(
            (times(costs.compare_forecast(), 1)..times(costs.compare_forecast(), 2))
                .contains(&foreseen),
            "{foreseen}"
        );
        let books = costs.decide(false, false);
        assert!((times(books, 1)..times(books, 6)).contains(&decided), "{decided}");
        let merged = costs.decide(false, true).work - books.work;
        let writes = times(Visit { work: merged, ..books }, 1);
        assert!(foreseen < decided && decided + writes <= both, "{foreseen}, {decided}, {both}");
        assert_eq!(step(&[]), Nanos::ZERO, "once");
        let work = PolicyWork { scanned_pages: 1000, rated_pages: 10, ..PolicyWork::default() };
        let before = cpu(PolicyWork::default());
        assert_eq!(cpu(work).saturating_sub(before), costs.policy(&work));
        assert!(costs.policy(&work) > Nanos(1000), "{}", costs.policy(&work));
    }
}
