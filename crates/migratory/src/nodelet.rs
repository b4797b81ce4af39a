//! One nodelet: its memory, threads and queues, run for one window after the other.
//!
//! Within a window threads run one after the other, each until its own time passes the window's
//! end. The cores and the memory channel are bounded by what they can do in a window; work beyond
//! it waits for the next one.

mod execute;

use crate::code::MachineCode;
use crate::counters::NodeletCounters;
use crate::memory::MemoryMap;
use crate::thread::{ChildFrame, FrameId, ThreadContext};
use crate::{code::UpdateOperation, MigratoryError, MigratoryMachine};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Figures of a machine in picoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    pub cycle_ps: u64,
    pub issue_ps: u64,
    pub word_ps: u64,
    pub memory_latency_ps: u64,
    pub engine_ps: u64,
    pub migration_ps: u64,
    pub packet_ps: u64,
    pub spawn_ps: u64,
    pub spawn_cycles: u64,
    pub context_words: u64,
    pub cores: u64,
    pub slots: usize,
    pub queue_length: usize,
    pub unacknowledged: u32,
    pub window_ps: u64,
}

impl Costs {
    pub fn new(machine: &MigratoryMachine) -> Self {
        let cycle_ps = machine.cycle_ps();
        Self {
            cycle_ps,
            issue_ps: cycle_ps * u64::from(machine.issue_cycles),
            word_ps: machine.word_ps(),
            memory_latency_ps: machine.memory_latency.get() * 1000,
            engine_ps: machine.engine_ps(),
            migration_ps: machine.migration_latency.get() * 1000,
            packet_ps: machine.packet_latency.get() * 1000,
            spawn_ps: cycle_ps * u64::from(machine.spawn_cycles),
            spawn_cycles: u64::from(machine.spawn_cycles),
            context_words: machine.context.get().div_ceil(8),
            cores: u64::from(machine.cores),
            slots: machine.slots() as usize,
            queue_length: machine.queue_length as usize,
            unacknowledged: machine.unacknowledged,
            window_ps: machine.window_ps(),
        }
    }
}

/// What all nodelets share.
#[derive(Debug)]
pub(crate) struct Environment<'a> {
    pub costs: Costs,
    pub map: &'a MemoryMap,
    pub code: &'a MachineCode,
}

/// What a message carries.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// A thread that migrates or, where `born`, begins.
    Thread { context: Box<ThreadContext>, born: bool },
    /// An update of a word; the sender's slot gets the acknowledgement.
    Update { operation: UpdateOperation, word: u64, value: i64, slot: u32 },
    /// An update was done.
    Acknowledge { slot: u32 },
    /// A child has ended.
    ChildEnded { frame: u32 },
}

/// A message between nodelets.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub departs_ps: u64,
    pub arrives_ps: u64,
    pub from: u32,
    pub to: u32,
    pub sequence: u64,
    pub payload: Payload,
}

/// Sums of queue lengths over time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueLengths {
    pub threads: u64,
    pub runnable: u64,
    pub arrivals: u64,
    pub departures: u64,
}

#[derive(Debug)]
pub(crate) struct Nodelet {
    pub index: u32,
    pub memory: Vec<i64>,
    slots: Vec<Option<Box<ThreadContext>>>,
    /// Of each slot: its thread waits until fewer than so many updates are unacknowledged.
    waits: Vec<u32>,
    free: Vec<u32>,
    live: usize,
    /// Threads for this window, with when they are ready.
    ready: VecDeque<(u64, u32)>,
    /// Threads that are ready in a later window only.
    sleeping: BinaryHeap<Reverse<(u64, u32)>>,
    /// Room for threads that ran in this window.
    again: Vec<(u64, u32)>,
    /// Room for those that were cut short.
    cut_short: Vec<(u64, u32)>,
    arriving: Vec<Message>,
    /// Messages that have not arrived yet.
    pub pending: Vec<Message>,
    /// Contexts that wait for a slot, with their arrival.
    arrived: VecDeque<Box<ThreadContext>>,
    /// Contexts for the migration engine, in the order of departure.
    departing: VecDeque<Message>,
    /// Messages of this window.
    pub outbox: Vec<Message>,
    frames: Vec<ChildFrame>,
    free_frames: Vec<u32>,
    engine_free_ps: u64,
    service_free_ps: u64,
    /// Work of the cores and the memory channel that is not yet done at the window's begin.
    core_ps: u64,
    memory_ps: u64,
    window: (u64, u64),
    sequence: u64,
    pub finished_ps: Option<u64>,
    pub failure: Option<MigratoryError>,
    pub counters: NodeletCounters,
    pub migrations_at: Vec<u64>,
    pub remote_at: Vec<u64>,
}

impl Nodelet {
    pub fn new(index: u32, nodelets: u32, memory: Vec<i64>, instructions: usize) -> Self {
        Self {
            index,
            memory,
            slots: Vec::new(),
            waits: Vec::new(),
            free: Vec::new(),
            live: 0,
            ready: VecDeque::new(),
            sleeping: BinaryHeap::new(),
            again: Vec::new(),
            cut_short: Vec::new(),
            arriving: Vec::new(),
            pending: Vec::new(),
            arrived: VecDeque::new(),
            departing: VecDeque::new(),
            outbox: Vec::new(),
            frames: Vec::new(),
            free_frames: Vec::new(),
            engine_free_ps: 0,
            service_free_ps: 0,
            core_ps: 0,
            memory_ps: 0,
            window: (0, 0),
            sequence: 0,
            finished_ps: None,
            failure: None,
            counters: NodeletCounters::new(nodelets),
            migrations_at: vec![0; instructions],
            remote_at: vec![0; instructions],
        }
    }

    /// The first thread begins here.
    pub fn begin(&mut self, context: ThreadContext) {
        self.counters.threads_created += 1;
        self.place(Box::new(context));
    }

    /// When something happens here next.
    pub fn next_ps(&self) -> Option<u64> {
        // Those that are ready go on with the next window.
        let ready = self.ready.front().map(|_| self.window.1);
        let sleeping = self.sleeping.peek().map(|Reverse((ready_ps, _))| *ready_ps);
        let pending = self.pending.iter().map(|message| message.arrives_ps).min();
        let departs = self.departing.front().map(|message| message.departs_ps);
        [ready, sleeping, pending, departs].into_iter().flatten().min()
    }

    /// Lengths of the queues now.
    pub fn queues(&self) -> QueueLengths {
        QueueLengths {
            threads: self.live as u64,
            runnable: (self.ready.len() + self.sleeping.len()) as u64,
            arrivals: self.arrived.len() as u64,
            departures: self.departing.len() as u64,
        }
    }

    /// Runs everything here from `begin_ps` to the end of the window.
    pub fn run_window(&mut self, begin_ps: u64, environment: &Environment) {
        let costs = &environment.costs;
        let passed = begin_ps - self.window.0;
        self.core_ps = self.core_ps.saturating_sub(passed.saturating_mul(costs.cores));
        self.memory_ps = self.memory_ps.saturating_sub(passed);
        self.window = (begin_ps, begin_ps + costs.window_ps);
        let end_ps = self.window.1;
        self.take_arrivals(environment);
        let capacity_ps = costs.window_ps * costs.cores;
        while let Some(Reverse((ready_ps, slot))) = self.sleeping.peek().copied() {
            if ready_ps >= end_ps {
                break;
            }
            self.sleeping.pop();
            self.ready.push_back((ready_ps, slot));
        }
        // Where the cores are busy for the whole window, the others are first in the next one.
        while self.core_ps < capacity_ps {
            let Some((ready_ps, slot)) = self.ready.pop_front() else { break };
            if ready_ps >= end_ps {
                self.again.push((ready_ps, slot));
            } else if let Some(next_ps) = self.execute(slot, ready_ps, environment) {
                // A thread that was cut short by a busy core or channel is first in the next
                // window.
                let turn = if next_ps == end_ps { &mut self.cut_short } else { &mut self.again };
                turn.push((next_ps, slot));
            }
            if self.failure.is_some() {
                return;
            }
        }
        let mut again = std::mem::take(&mut self.again);
        for (ready_ps, slot) in again.drain(..) {
            if ready_ps >= end_ps + costs.window_ps {
                self.sleeping.push(Reverse((ready_ps, slot)));
            } else {
                self.ready.push_back((ready_ps, slot));
            }
        }
        self.again = again;
        while let Some(cut_short) = self.cut_short.pop() {
            self.ready.push_front(cut_short);
        }
        while self.departing.front().is_some_and(|message| message.departs_ps < end_ps) {
            self.outbox.extend(self.departing.pop_front());
        }
    }

    fn take_arrivals(&mut self, environment: &Environment) {
        let end_ps = self.window.1;
        let mut arriving = std::mem::take(&mut self.arriving);
        let mut index = 0;
        while index < self.pending.len() {
            if self.pending[index].arrives_ps < end_ps {
                arriving.push(self.pending.swap_remove(index));
            } else {
                index += 1;
            }
        }
        arriving.sort_unstable_by_key(|m| (m.arrives_ps, m.from, m.sequence));
        for message in arriving.drain(..) {
            let arrives_ps = message.arrives_ps;
            match message.payload {
                Payload::Thread { mut context, born } => {
                    self.counters.threads_created += u64::from(born);
                    context.now_ps = arrives_ps;
                    self.admit(context, &environment.costs);
                }
                Payload::Update { operation, word, value, slot } => {
                    self.counters.remote_in += 1;
                    let done_ps = self.serve(operation, word, value, arrives_ps, environment);
                    self.send(
                        message.from,
                        Payload::Acknowledge { slot },
                        done_ps,
                        &environment.costs,
                    );
                }
                Payload::Acknowledge { slot } => self.acknowledge(slot, arrives_ps),
                Payload::ChildEnded { frame } => self.end_child(frame, arrives_ps),
            }
        }
        self.arriving = arriving;
    }

    /// A context takes a slot, or waits for one.
    fn admit(&mut self, context: Box<ThreadContext>, costs: &Costs) {
        if self.live < costs.slots {
            self.place(context);
            return;
        }
        if self.arrived.len() >= costs.queue_length {
            self.counters.spills += 1;
            self.memory_ps += 2 * costs.context_words * costs.word_ps;
        }
        self.arrived.push_back(context);
        let waiting = self.arrived.len() as u64;
        self.counters.longest_arrivals = self.counters.longest_arrivals.max(waiting);
    }

    fn place(&mut self, context: Box<ThreadContext>) {
        let ready_ps = context.now_ps;
        self.live += 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(context);
                slot
            }
            None => {
                self.slots.push(Some(context));
                self.waits.push(0);
                (self.slots.len() - 1) as u32
            }
        };
        self.ready.push_back((ready_ps, slot));
    }

    /// A slot is free: the next context that waits takes it.
    fn release(&mut self, slot: u32, now_ps: u64) {
        self.live -= 1;
        self.free.push(slot);
        if let Some(mut context) = self.arrived.pop_front() {
            context.now_ps = context.now_ps.max(now_ps);
            self.place(context);
        }
    }

    /// Updates a word for another nodelet; when it is done.
    fn serve(
        &mut self,
        operation: UpdateOperation,
        word: u64,
        value: i64,
        arrives_ps: u64,
        environment: &Environment,
    ) -> u64 {
        let words = if operation == UpdateOperation::Store { 1 } else { 2 };
        let takes_ps = words * environment.costs.word_ps;
        self.counters.memory_words += words;
        self.memory_ps += takes_ps;
        self.service_free_ps = self.service_free_ps.max(arrives_ps) + takes_ps;
        let waiting = (self.service_free_ps - arrives_ps) / takes_ps;
        self.counters.longest_updates = self.counters.longest_updates.max(waiting);
        let word = &mut self.memory[word as usize];
        *word = crate::semantics::update(operation, *word, value);
        self.service_free_ps
    }

    fn acknowledge(&mut self, slot: u32, now_ps: u64) {
        let Some(context) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        context.unacknowledged = context.unacknowledged.saturating_sub(1);
        let waits = &mut self.waits[slot as usize];
        if *waits > 0 && context.unacknowledged < *waits {
            *waits = 0;
            self.ready.push_back((now_ps.max(context.now_ps), slot));
        }
    }

    fn end_child(&mut self, frame: u32, now_ps: u64) {
        let Some(children) = self.frames.get_mut(frame as usize) else { return };
        children.ended += 1;
        if let Some((expected, slot)) = children.waiting {
            if children.ended == expected {
                children.waiting = None;
                self.ready.push_back((now_ps, slot));
            }
        }
    }

    fn new_frame(&mut self) -> FrameId {
        let frame = match self.free_frames.pop() {
            Some(frame) => {
                self.frames[frame as usize] = ChildFrame::default();
                frame
            }
            None => {
                self.frames.push(ChildFrame::default());
                (self.frames.len() - 1) as u32
            }
        };
        FrameId { nodelet: self.index, frame }
    }

    /// Sends a packet.
    fn send(&mut self, to: u32, payload: Payload, now_ps: u64, costs: &Costs) {
        self.sequence += 1;
        self.outbox.push(Message {
            departs_ps: now_ps,
            arrives_ps: now_ps + costs.packet_ps,
            from: self.index,
            to,
            sequence: self.sequence,
            payload,
        });
    }

    /// Gives a context to the migration engine; where its queue is full, when there is space.
    fn depart(
        &mut self,
        to: u32,
        context: Box<ThreadContext>,
        born: bool,
        costs: &Costs,
    ) -> Result<(), (Box<ThreadContext>, u64)> {
        let now_ps = context.now_ps;
        if let Some(over) = self.departing.len().checked_sub(costs.queue_length) {
            let room_ps = self.departing[over].departs_ps;
            if room_ps > now_ps {
                self.counters.departure_waits += 1;
                return Err((context, room_ps));
            }
        }
        self.engine_free_ps = self.engine_free_ps.max(now_ps) + costs.engine_ps;
        self.sequence += 1;
        self.departing.push_back(Message {
            departs_ps: self.engine_free_ps,
            arrives_ps: self.engine_free_ps + costs.migration_ps,
            from: self.index,
            to,
            sequence: self.sequence,
            payload: Payload::Thread { context, born },
        });
        let waiting = (self.engine_free_ps - now_ps).div_ceil(costs.engine_ps);
        self.counters.longest_departures = self.counters.longest_departures.max(waiting);
        Ok(())
    }
}
