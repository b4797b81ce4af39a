//! What tests of compiled programs share: the compiler, and elements that run what it made.
#![allow(dead_code)]

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use terrace_riscv::linux::{Errno, GuestFileStatus, Host, Process};
use terrace_sys::RingEndpoint;
use terrace_testkit::compile_xbgas_program;
use terrace_xbgas::clock::{CoreOrder, ElementCore, SimulatedClock};
use terrace_xbgas::element::{
    DistributedElement, DistributedEnd, ElementMachine, ElementSchedule, ElementSetup,
    ElementStatistics, ElementsEnd, ELEMENTS_VARIABLE, ELEMENT_VARIABLE,
};
use terrace_xbgas::lookaside::{LookasideSize, ObjectTable};
use terrace_xbgas::network::ElementNetwork;
use terrace_xbgas::transport::{ElementTransport, RingTransport, TransportError};
use terrace_xbgas::Dialect;

/// Keeps what an element writes; has no files, and a clock that only simulation moves.
#[derive(Debug, Default)]
struct ElementOutput(Rc<RefCell<Vec<u8>>>, SimulatedClock);

impl Host for ElementOutput {
    fn read(&mut self, _: i32, _: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }
    fn write(&mut self, _: i32, bytes: &[u8]) -> Result<usize, Errno> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn open(&mut self, _: &[u8], _: u32, _: u32) -> Result<i32, Errno> {
        Err(Errno(2))
    }
    fn close(&mut self, _: i32) -> Result<(), Errno> {
        Ok(())
    }
    fn seek(&mut self, _: i32, _: i64, _: u32) -> Result<u64, Errno> {
        Err(Errno(29))
    }
    fn status(&mut self, _: i32) -> Result<GuestFileStatus, Errno> {
        Ok(GuestFileStatus { mode: 0o10_600, ..GuestFileStatus::default() })
    }
    fn now_ns(&mut self, _: u32) -> u64 {
        self.1.now_ns()
    }
    fn sleep_ns(&mut self, ns: u64) {
        self.1.sleep_ns(ns);
    }
    fn fill_random(&mut self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// Compiles a program with the library; `None` without a compiler.
pub fn compile(name: &str, dialect: u32) -> Option<Vec<u8>> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    compile_file(&programs.join(name), dialect)
}

/// The same, of a file anywhere.
pub fn compile_file(source: &Path, dialect: u32) -> Option<Vec<u8>> {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{dialect}"));
    if !compile_xbgas_program(source, dialect, &output) {
        return None;
    }
    Some(std::fs::read(&output).expect("the compiler wrote it"))
}

/// What elements run with, and in what time.
#[derive(Debug, Clone)]
pub struct RunOptions {
    pub setup: ElementSetup,
    pub time: Option<(ElementCore, ElementNetwork)>,
}

impl RunOptions {
    /// So many elements of dialect 2018, without a model of time.
    pub fn of(elements: u32) -> Self {
        let setup = ElementSetup {
            objects: ObjectTable::of_elements(elements),
            files: Vec::new(),
            dialect: Dialect::V2018,
            schedule: ElementSchedule::from_seed(1),
            lookaside: LookasideSize::default(),
        };
        Self { setup, time: None }
    }

    /// In the time of a machine and a network.
    pub fn in_time(self, machine: &str, order: CoreOrder, network: ElementNetwork) -> Self {
        let machine = terrace_machine::preset(machine).expect("a preset");
        let core = ElementCore::new(&machine, order, None).expect("it can be modelled");
        Self { time: Some((core, network)), ..self }
    }
}

pub struct ElementsRun {
    pub end: ElementsEnd,
    pub printed: Vec<String>,
    pub statistics: Vec<ElementStatistics>,
    pub files: Vec<Vec<u8>>,
}

fn process_of(
    file: &[u8],
    words: &[&str],
    (element, elements): (u32, u32),
    host: ElementOutput,
) -> Process<ElementOutput> {
    let arguments: Vec<Vec<u8>> =
        ["program"].iter().chain(words).map(|word| word.as_bytes().to_vec()).collect();
    let environment = [(ELEMENT_VARIABLE, element), (ELEMENTS_VARIABLE, elements)]
        .map(|(name, value)| format!("{name}={value}").into_bytes());
    Process::new(file, &arguments, &environment, 64 << 20, host).expect("a program")
}

/// Runs the element at the end of a transport; how it ended, and what it printed.
pub fn run_at<T: ElementTransport>(
    file: &[u8],
    words: &[&str],
    options: &RunOptions,
    transport: T,
) -> (DistributedEnd, String) {
    let (end, output) = try_at(file, words, options, transport);
    (end.expect("it ends"), output)
}

/// The same, where the transport may fail.
pub fn try_at<T: ElementTransport>(
    file: &[u8],
    words: &[&str],
    options: &RunOptions,
    transport: T,
) -> (Result<DistributedEnd, TransportError>, String) {
    let host = ElementOutput::default();
    let output = host.0.clone();
    let process = process_of(file, words, (transport.element(), transport.elements()), host);
    let end = DistributedElement::new(process, &options.setup, transport).run();
    (end, String::from_utf8(output.take()).expect("text"))
}

/// Runs elements that reach each other through rings of shared memory, a thread each; what each
/// knows of the end, and what it printed.
pub fn run_apart(
    file: &[u8],
    words: &[&str],
    elements: u32,
    options: &RunOptions,
) -> Vec<(DistributedEnd, String)> {
    let memory = terrace_sys::make_rings(elements).expect("memory");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..elements)
            .map(|element| {
                let fd = memory.fd().try_clone_to_owned().expect("a descriptor");
                scope.spawn(move || {
                    let endpoint = RingEndpoint::open(fd, element, elements).expect("rings");
                    run_at(file, words, options, RingTransport::new(endpoint))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it ran")).collect()
    })
}

pub fn run_with(file: &[u8], words: &[&str], elements: u32, options: &RunOptions) -> ElementsRun {
    let mut outputs = Vec::new();
    let clocks: Vec<_> = (0..elements).map(|_| SimulatedClock::default()).collect();
    let processes = (0..elements)
        .map(|element| {
            let host = ElementOutput(Rc::default(), clocks[element as usize].clone());
            outputs.push(host.0.clone());
            process_of(file, words, (element, elements), host)
        })
        .collect();
    let mut machine = ElementMachine::new(processes, &options.setup);
    if let Some((core, network)) = &options.time {
        machine = machine.with_time(core, network, &clocks).expect("a network");
    }
    let end = machine.run(2_000_000_000);
    let printed = outputs.iter().map(|o| String::from_utf8(o.take()).expect("text")).collect();
    let files = (0..options.setup.files.len()).filter_map(|file| machine.file_bytes(file));
    let files = files.collect();
    ElementsRun { end, printed, statistics: machine.statistics(), files }
}

pub fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 16
}
