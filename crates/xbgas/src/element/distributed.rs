//! One element in a process of its own. It reaches the others, and they reach it, by messages; it
//! answers theirs between turns, while it waits for an answer and after it exited.
//!
//! An element has one request under way at most, so memory is sequentially consistent for each
//! initiator, which RVWMO allows. Element 0 finds out that all are idle: all reported twice the
//! same, and as many requests were made as answered (Mattern, "Algorithms for distributed
//! termination detection", 1987, the four-counter method).

use super::access::{IssuedInstruction, ObjectSpace};
use super::issued::IssuedAccess;
use super::{
    ElementFault, ElementSetup, ElementState, ElementStatistics, ElementsEnd, FileMemory,
    ProcessingElement, TurnEnd,
};
use crate::lookaside::ObjectMemory;
use crate::message::{ElementMessage, IdleReport};
use crate::protocol::{serve, RemoteReply, RemoteRequest, RequestRefusal};
use crate::transport::{ElementTransport, MessageWait, TransportError};
use std::time::{Duration, Instant};
use terrace_riscv::linux::{Host, Process};
use terrace_riscv::memory::{AccessKind, MemoryFault};

/// How long an element that leaves waits for the others' last messages. They come at once, unless
/// another element is in a turn or its process is gone.
const LEAVE: Duration = Duration::from_secs(10);

/// What a memory says to a request.
type RequestOutcome = Result<RemoteReply, RequestRefusal>;

/// How a run ended, as one of its elements knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistributedEnd {
    /// How. Where another element ended the run: as it said.
    pub end: ElementsEnd,
    /// What each element did until it reported last; at other elements than 0 their own only.
    pub statistics: Vec<ElementStatistics>,
}

/// An element of a run over several processes.
#[derive(Debug)]
pub struct DistributedElement<H, T> {
    element: ProcessingElement<H>,
    /// Those that this element serves have what they hold; the others are empty.
    files: Vec<FileMemory>,
    space: ObjectSpace,
    transport: T,
    quantum: u64,
    requests: u64,
    served: u64,
    round: u32,
    reports: Vec<Option<IdleReport>>,
    /// Those of the round before.
    earlier: Vec<Option<IdleReport>>,
    left: Vec<bool>,
    reply: Option<RequestOutcome>,
    /// Which element owes a reply.
    asked: Option<u32>,
    over: Option<ElementsEnd>,
}

impl<H: Host, T: ElementTransport> DistributedElement<H, T> {
    /// The element at this end of a transport. Of files, those that it serves need their bytes.
    #[must_use]
    pub fn new(process: Process<H>, setup: &ElementSetup, transport: T) -> Self {
        let count = transport.elements() as usize;
        Self {
            element: ProcessingElement::new(transport.element(), process, setup),
            files: setup.files.iter().map(FileMemory::new).collect(),
            space: setup.space(count as u32),
            transport,
            quantum: setup.schedule.quantum.max(1),
            requests: 0,
            served: 0,
            round: 0,
            reports: vec![None; count],
            earlier: vec![None; count],
            left: vec![false; count],
            reply: None,
            asked: None,
            over: None,
        }
    }

    /// What a file holds by now; `None` where there is no such file.
    pub fn file_bytes(&mut self, file: usize) -> Option<Vec<u8>> {
        self.files.get_mut(file)?.bytes()
    }

    /// Runs until all elements exit or one ends the run.
    ///
    /// # Errors
    /// [`TransportError`].
    pub fn run(&mut self) -> Result<DistributedEnd, TransportError> {
        let end = self.run_to_end();
        if let Err(error) = &end {
            // The others do not wait for what never comes.
            self.transport.end_others(1, Some(error.to_string()));
        }
        end
    }

    fn run_to_end(&mut self) -> Result<DistributedEnd, TransportError> {
        let end = loop {
            if let Some(end) = self.over.take() {
                break end;
            }
            if self.element.state == ElementState::Running {
                if let Some(end) = self.take_turn()? {
                    self.announce(&end);
                    break end;
                }
                // What others stored during the turn may be what a thread waits for.
                if self.element.state == ElementState::Waiting
                    && self.element.process.wake_changed()
                {
                    self.element.state = ElementState::Running;
                }
                if self.element.state != ElementState::Running {
                    self.report();
                }
                while self.over.is_none() && self.handle(MessageWait::No)? {}
            } else {
                self.handle(MessageWait::Yes)?;
            }
        };
        match self.leave() {
            // What ended the run says more than who is still in a long call of its host.
            Err(TransportError::Silent(_)) if end.status().1.is_some() => {}
            left => left?,
        }
        let own = self.element.number as usize;
        let mut statistics: Vec<_> = self
            .reports
            .iter()
            .map(|r| r.map_or_else(Default::default, |r| r.statistics))
            .collect();
        statistics[own] = self.element.statistics();
        Ok(DistributedEnd { end, statistics })
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let own = self.element.number;
        (0..self.space.elements).filter(move |other| *other != own)
    }

    fn announce(&mut self, end: &ElementsEnd) {
        let (status, line) = end.status();
        let message = ElementMessage::End { status, line };
        for other in self.others() {
            self.transport.send(other, &message);
        }
    }

    /// Says so, and waits until all others did; what they sent before is dropped.
    fn leave(&mut self) -> Result<(), TransportError> {
        for other in self.others() {
            self.transport.send(other, &ElementMessage::Leave);
        }
        let began = Instant::now();
        while let Some(other) = self.others().find(|other| !self.left[*other as usize]) {
            match self.transport.receive(MessageWait::Yes)? {
                Some((from, ElementMessage::Leave)) => self.left[from as usize] = true,
                Some(_) => {}
                None if began.elapsed() > LEAVE => return Err(TransportError::Silent(other)),
                None => {}
            }
        }
        // Its own word may wait behind a long reply that the other still reads.
        while !self.transport.flush() && began.elapsed() <= LEAVE {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn take_turn(&mut self) -> Result<Option<ElementsEnd>, TransportError> {
        let end_at = self.element.process.instructions() + self.quantum;
        loop {
            let element = &mut self.element;
            let left = end_at.saturating_sub(element.process.instructions());
            let end = element.process.run(&mut (), left);
            match element.settle(end) {
                TurnEnd::Over => return Ok(None),
                TurnEnd::Run(end) => return Ok(Some(end)),
                TurnEnd::Extended { thread, word } => {
                    let executed = self.execute(thread, word)?;
                    if self.over.is_some() {
                        return Ok(None);
                    }
                    if let Err(fault) = executed {
                        let pc = self.element.issuing(thread).pc;
                        let element = self.element.number;
                        return Ok(Some(ElementsEnd::Fault { element, thread, pc, fault }));
                    }
                }
            }
        }
    }

    /// Executes an extended instruction, program counter included.
    fn execute(
        &mut self,
        thread: u32,
        word: u32,
    ) -> Result<Result<(), ElementFault>, TransportError> {
        let decoded = self.space.decode(word);
        let issued = decoded.and_then(|decoded| self.element.issue(&self.space, thread, &decoded));
        let done = match issued {
            Err(fault) => Err(fault),
            Ok(IssuedInstruction::Set { register, value }) => {
                self.element.set_register(thread, register, value);
                Ok(())
            }
            Ok(IssuedInstruction::Access(access)) => match self.reach(&access)? {
                None => return Ok(Ok(())),
                Some(Ok(reply)) => self.element.complete(thread, access.target, &reply),
                Some(Err(refusal)) => {
                    let element = access.server as u32;
                    Err(ElementFault::Refused { element, refusal })
                }
            },
        };
        if done.is_ok() {
            self.element.retire(thread);
        }
        Ok(done)
    }

    /// The answer of whoever has the memory; `None` where the run ended before.
    fn reach(&mut self, access: &IssuedAccess) -> Result<Option<RequestOutcome>, TransportError> {
        if access.server == self.element.number as usize {
            return Ok(Some(self.serve(access.memory, &access.request)));
        }
        let IssuedAccess { memory, request, .. } = access.clone();
        let server = access.server as u32;
        self.requests += 1;
        self.asked = Some(server);
        let message = ElementMessage::Request { memory, request };
        self.transport.send(server, &message);
        while self.over.is_none() {
            if let Some(reply) = self.reply.take() {
                let fits = |reply: &RemoteReply| access.request.action.is_answered_by(reply);
                return match reply {
                    Ok(reply) if !fits(&reply) => Err(TransportError::WrongReply(server)),
                    reply => Ok(Some(reply)),
                };
            }
            self.handle(MessageWait::Yes)?;
        }
        Ok(None)
    }

    fn serve(&mut self, memory: ObjectMemory, request: &RemoteRequest) -> RequestOutcome {
        let memory = match memory {
            ObjectMemory::Element(_) => self.element.process.memory_mut(),
            ObjectMemory::File(file) => match self.files.get_mut(file as usize) {
                Some(file) => &mut file.memory,
                None => {
                    let (address, kind) = (request.address, AccessKind::Load);
                    return Err(MemoryFault { address, kind, exhausted: false }.into());
                }
            },
        };
        serve(memory, request)
    }

    /// Handles a message; whether there was one.
    fn handle(&mut self, wait: MessageWait) -> Result<bool, TransportError> {
        let Some((from, message)) = self.transport.receive(wait)? else { return Ok(false) };
        match message {
            ElementMessage::Request { memory, request } => {
                let reply = self.serve(memory, &request);
                self.served += 1;
                self.transport.send(from, &ElementMessage::Reply(reply));
                if self.element.state == ElementState::Waiting
                    && self.element.process.wake_changed()
                {
                    self.element.state = ElementState::Running;
                } else if self.element.state != ElementState::Running {
                    // Its counts have changed.
                    self.report();
                }
            }
            ElementMessage::Reply(reply) => {
                if self.asked.take() != Some(from) {
                    return Err(TransportError::Damaged(from));
                }
                self.reply = Some(reply);
            }
            ElementMessage::Idle(report) => {
                if let Some(of) = self.reports.get_mut(from as usize) {
                    *of = Some(report);
                }
                self.detect_end();
            }
            ElementMessage::Probe { round } => {
                self.round = round;
                if self.element.state != ElementState::Running {
                    self.report();
                }
            }
            ElementMessage::End { status, line } => {
                let end = ElementsEnd::Reported { status, line };
                self.over.get_or_insert(end);
            }
            ElementMessage::Leave => self.left[from as usize] = true,
        }
        Ok(true)
    }

    /// Tells element 0 that this one is idle.
    fn report(&mut self) {
        let report = IdleReport {
            round: self.round,
            exited: match self.element.state {
                ElementState::Exited(status) => Some(status),
                _ => None,
            },
            requests: self.requests,
            served: self.served,
            statistics: self.element.statistics(),
        };
        if self.element.number == 0 {
            self.reports[0] = Some(report);
            self.detect_end();
        } else {
            self.transport.send(0, &ElementMessage::Idle(report));
        }
    }

    /// Element 0: ends the run where no element can go on, or asks again.
    fn detect_end(&mut self) {
        let idle = self.element.state != ElementState::Running;
        let round = self.round;
        let all: Option<Vec<IdleReport>> =
            self.reports.iter().map(|r| r.filter(|r| r.round == round)).collect();
        let (true, Some(all)) = (idle && self.element.number == 0, all) else { return };
        let counts = |r: &IdleReport| (r.exited, r.requests, r.served);
        let unchanged = self
            .earlier
            .iter()
            .zip(&all)
            .all(|(earlier, now)| earlier.as_ref().map(counts) == Some(counts(now)));
        let (made, answered) = all.iter().fold((0u64, 0u64), |(r, s), report| {
            (r.wrapping_add(report.requests), s.wrapping_add(report.served))
        });
        if unchanged && made == answered {
            let end = end_of(&all);
            self.announce(&end);
            self.over = Some(end);
            return;
        }
        self.earlier = all.into_iter().map(Some).collect();
        self.round += 1;
        let round = self.round;
        for other in self.others() {
            self.transport.send(other, &ElementMessage::Probe { round });
        }
        if let Some(own) = &mut self.reports[0] {
            own.round = round;
        }
        // Alone, nobody's report comes to ask for this again.
        if self.space.elements == 1 {
            self.detect_end();
        }
    }
}

/// How a run ended in which no element can go on.
fn end_of(reports: &[IdleReport]) -> ElementsEnd {
    ElementsEnd::of_idle((0..).zip(reports.iter().map(|report| report.exited)))
}
