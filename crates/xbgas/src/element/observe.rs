//! What an observer is shown of elements: what their processes do, and their extended accesses.

use super::issued::IssuedAccess;
use crate::clock::ElementClock;
use crate::lookaside::ObjectMemory;
use terrace_riscv::execute::{AccessObserver, ObservedAccess};
use terrace_riscv::linux::{ProcessEvent, ProcessObserver};

/// An access of one element to another's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedAccess {
    /// The element that has the memory.
    pub server: u32,
    /// Address there; instruction and count are the initiator's.
    pub access: ObservedAccess,
}

/// Who is shown all elements. Accesses and events are of the element that was entered last.
pub trait ElementsObserver: ProcessObserver {
    /// What follows is of this element.
    fn enter_element(&mut self, element: u32);
    /// The current element's current thread reached another element's memory.
    fn served(&mut self, access: ServedAccess);
    /// The current element waited, and goes on because of a store of another one.
    fn resume(&mut self);
}

impl ElementsObserver for () {
    fn enter_element(&mut self, _: u32) {}
    fn served(&mut self, _: ServedAccess) {}
    fn resume(&mut self) {}
}

/// Who accesses what an object names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IssuingInstruction {
    pub element: u32,
    pub thread: u32,
    pub pc: u64,
    pub instret: u64,
}

impl IssuingInstruction {
    /// Shows an access that was made, on both sides. Files have no addresses of an element: an
    /// access to one is not shown.
    pub(super) fn show<O: ElementsObserver>(&self, access: &IssuedAccess, observer: &mut O) {
        observer.enter_element(self.element);
        observer.enter(self.thread);
        let &Self { pc, instret, .. } = self;
        let of =
            |address, size, store| ObservedAccess { pc, address, size, store, instret, value: 0 };
        let (bytes, count, step) = access.request.action.shape();
        let (reads, writes) = access.request.action.needs();
        for element in 0..count {
            let offset = element.wrapping_mul(step as u64);
            let there = access.request.address.wrapping_add(offset);
            for store in [false, true] {
                if !(if store { writes } else { reads }) {
                    continue;
                }
                let shown = of(there, bytes, store);
                match access.memory {
                    ObjectMemory::Element(server) if server == self.element => {
                        observer.access(shown);
                    }
                    ObjectMemory::Element(server) => {
                        observer.served(ServedAccess { server, access: shown });
                    }
                    ObjectMemory::File(_) => {}
                }
            }
            // A bulk transfer's own side: what it loads there it stores here.
            if let Some(local) = access.local {
                observer.access(of(local.wrapping_add(offset), bytes, reads));
            }
        }
    }
}

/// An element's clock, and an observer beside it.
pub(super) struct ClockedObserver<'a, O> {
    pub clock: &'a mut ElementClock,
    pub observer: &'a mut O,
}

impl<O: ProcessObserver> AccessObserver for ClockedObserver<'_, O> {
    #[inline(always)]
    fn access(&mut self, access: ObservedAccess) {
        self.clock.access(access);
        self.observer.access(access);
    }
}

impl<O: ProcessObserver> ProcessObserver for ClockedObserver<'_, O> {
    fn enter(&mut self, thread: u32) {
        self.clock.enter(thread);
        self.observer.enter(thread);
    }

    fn event(&mut self, instret: u64, event: ProcessEvent) {
        self.clock.event(instret, event);
        self.observer.event(instret, event);
    }
}
