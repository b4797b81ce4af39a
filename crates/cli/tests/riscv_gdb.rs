//! `terrace riscv run --gdb`: a small client of gdb's remote protocol, and gdb itself where it is
//! installed for RISC-V.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use terrace_testkit::{compile_xbgas_program, run_riscv_compiler, RISCV_COMPILER};

/// Calls a function twice, and exits with a status that its value and a global word make.
const PROGRAM: &str = "
long word = 5;
__attribute__((noinline)) long twice(long value) { return 2 * value; }
int main(void) { long sum = twice(word); word = 7; sum += twice(word); return sum; }
";
/// The same with a fault at the end.
const FAULT: &str = "int main(void) { return *(volatile int *)8; }";

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gdb");
    std::fs::create_dir_all(&folder).expect("made");
    folder
}

/// A program of one source text; `None` without a compiler.
fn compile(name: &str, text: &str) -> Option<PathBuf> {
    let source = folder().join(format!("{name}.c"));
    std::fs::write(&source, text).expect("written");
    let output = folder().join(name);
    let words = [Path::new("-O1"), Path::new("-g"), Path::new("-static"), &source];
    run_riscv_compiler(RISCV_COMPILER, words, &output).then_some(output)
}

/// A symbol's address.
fn address(program: &Path, symbol: &str) -> u64 {
    let run = Command::new("riscv64-linux-gnu-nm").arg(program).output().expect("it is there");
    let text = String::from_utf8(run.stdout).expect("text");
    let line = text.lines().find(|line| line.ends_with(&format!(" {symbol}")));
    u64::from_str_radix(line.expect("the symbol").split(' ').next().expect("a word"), 16)
        .expect("an address")
}

/// The command, which waits for a debugger, and where it says that it does.
fn start(words: &[&str]) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["riscv", "run"])
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut messages = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    messages.read_line(&mut line).expect("a line");
    let at = line.trim_end().rsplit_once("target remote ").unwrap_or_else(|| panic!("{line}")).1;
    (child, messages, at.to_owned())
}

/// How the command ended: its status, and what it said since.
fn end(mut child: Child, mut messages: impl Read) -> (Option<i32>, String) {
    let mut said = String::new();
    messages.read_to_string(&mut said).expect("text");
    (child.wait().expect("it ends").code(), said)
}

struct Client<S>(BufReader<S>);

impl<S: Read + Write> Client<S> {
    fn send(&mut self, command: &str) {
        let sum = command.bytes().fold(0_u8, u8::wrapping_add);
        let packet = format!("${command}#{sum:02x}");
        self.0.get_mut().write_all(packet.as_bytes()).expect("sent");
    }

    /// The answer, whose sum is right, and which is acknowledged.
    fn answer(&mut self) -> String {
        let mut bytes = Vec::new();
        self.0.read_until(b'#', &mut bytes).expect("an answer");
        let mut sum = [0; 2];
        self.0.read_exact(&mut sum).expect("its sum");
        let text = String::from_utf8(bytes).expect("text");
        let (acknowledged, body) = text.split_once('$').unwrap_or_else(|| panic!("{text}"));
        assert!(acknowledged.is_empty() || acknowledged == "+", "{text}");
        let body = body.trim_end_matches('#');
        let expected = body.bytes().fold(0_u8, u8::wrapping_add);
        assert_eq!(std::str::from_utf8(&sum).expect("text"), format!("{expected:02x}"), "{body}");
        let acknowledged = self.0.get_mut().write_all(b"+");
        // Who told that the program ended does not wait for that.
        assert!(acknowledged.is_ok() || body.starts_with(['X', 'W']), "{body}: {acknowledged:?}");
        body.to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    /// A register by gdb's number.
    fn register(&mut self, number: usize) -> u64 {
        little_endian(&self.ask(&format!("p{number:x}")))
    }
}

/// The number whose bytes, least first, a text has in hexadecimal.
fn little_endian(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|_| panic!("{text}")).swap_bytes()
}

const PC: usize = 32;
const A0: usize = 10;

#[test]
fn a_client_reads_stops_steps_and_changes_an_element() {
    let Some(program) = compile("twice", PROGRAM) else { return };
    let (twice, word) = (address(&program, "twice"), address(&program, "word"));
    let (child, messages, at) = start(&["--gdb", "0", program.to_str().expect("text")]);
    let port = at.strip_prefix("localhost:").expect("a port");
    let stream = TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).expect("there");
    let mut client = Client(BufReader::new(stream));
    let supported = client.ask("qSupported:multiprocess+;swbreak+;vContSupported+");
    assert!(supported.contains("qXfer:features:read+"), "{supported}");
    let mut xml = String::new();
    loop {
        let at = xml.len();
        let part = client.ask(&format!("qXfer:features:read:target.xml:{at:x},800"));
        xml.push_str(&part[1..]);
        if part.starts_with('l') {
            break;
        }
    }
    assert!(xml.contains("riscv:rv64") && xml.contains("\"e31\""), "{xml}");

    // At the first instruction: an even address, and a stack.
    let all = client.ask("g");
    assert_eq!(all.len(), 33 * 16, "{all}");
    let pc = client.register(PC);
    assert_eq!(little_endian(&all[32 * 16..]), pc);
    assert!(pc != 0 && pc % 2 == 0 && client.register(2) % 16 == 0);
    assert_eq!(client.ask(&format!("m{word:x},8")), "0500000000000000");
    assert_eq!(client.ask("m8,8").chars().next(), Some('E'));

    assert_eq!(client.ask(&format!("Z0,{twice:x},2")), "OK");
    // Memory is as it was.
    let there = client.ask(&format!("m{twice:x},4"));
    let stop = client.ask("vCont;c");
    assert!(stop.starts_with("T05") && stop.contains("swbreak"), "{stop}");
    assert_eq!((client.register(PC), client.register(A0)), (twice, 5));
    assert_eq!(client.ask(&format!("m{twice:x},4")), there);

    // One instruction, then on to the second call; both are changed.
    let stop = client.ask("vCont;s:p1.1;c");
    assert!(stop.starts_with('S') || stop.starts_with("T05"), "{stop}");
    let stepped = client.register(PC);
    assert!(stepped == twice + 2 || stepped == twice + 4, "{stepped:#x}");
    let stop = client.ask("vCont;c");
    assert!(stop.starts_with("T05"), "{stop}");
    assert_eq!((client.register(PC), client.register(A0)), (twice, 7));
    assert_eq!(client.ask(&format!("m{word:x},8")), "0700000000000000");
    assert_eq!(client.ask("Pa=0900000000000000"), "OK");
    assert_eq!(client.register(A0), 9);
    assert_eq!(client.ask(&format!("z0,{twice:x},2")), "OK");
    // 2 * 5 + 2 * 9.
    let stop = client.ask("vCont;c");
    assert!(stop.starts_with("W1c"), "{stop}");
    assert_eq!(end(child, messages), (Some(28), String::new()));
}

#[test]
fn a_socket_shows_faults_and_its_client_may_kill_or_go_away() {
    let Some(program) = compile("fault", FAULT) else { return };
    let program = program.to_str().expect("text");
    let socket = folder().join("socket");
    let connect = |words: &[&str]| {
        let words = [&["--gdb", socket.to_str().expect("text")], words, &[program]].concat();
        let (child, messages, at) = start(&words);
        let client = Client(BufReader::new(UnixStream::connect(at).expect("there")));
        (child, messages, client)
    };
    let (child, messages, mut client) = connect(&[]);
    let stop = client.ask("vCont;c");
    assert!(stop.starts_with("T0b"), "{stop}");
    let stop = client.ask("vCont;c");
    assert!(stop.starts_with("X0b"), "{stop}");
    let (status, said) = end(child, messages);
    assert!(status == Some(128 + 11) && said.contains("element 0, thread 0"), "{said}");

    let (child, messages, mut client) = connect(&["--pes", "2", "--gdb-element", "1"]);
    assert!(client.register(PC) != 0);
    client.send("k");
    let (status, said) = end(child, messages);
    assert_eq!((status, said.contains("gdb ended the program")), (Some(137), true), "{said}");

    let (child, messages, client) = connect(&[]);
    drop(client);
    let (status, said) = end(child, messages);
    assert!(status == Some(1) && said.contains("is gone: "), "{said}");
    assert!(!socket.exists());
}

#[test]
fn what_cannot_be_debugged_is_refused() {
    for (words, status, wanted) in [
        (vec!["--gdb", "0.0.0.0:1234"], 2, "debuggers of other hosts cannot connect"),
        (vec!["--gdb", "0", "--fabric", "100ns"], 3, "a debugger needs elements in turns"),
        (vec!["--gdb", "0", "--transport", "shared"], 3, "a debugger needs elements in turns"),
        (vec!["--gdb", "0", "--pes", "2", "--gdb-element", "2"], 2, "no element 2 of 2"),
        (vec!["--gdb-element", "0"], 2, "--gdb"),
        (vec!["--gdb", "/nowhere/socket"], 1, "cannot read /nowhere/program"),
    ] {
        let run = Command::new(env!("CARGO_BIN_EXE_terrace"))
            .args(["riscv", "run"])
            .args(&words)
            .arg("/nowhere/program")
            .output()
            .expect("it starts");
        let said = String::from_utf8(run.stderr).expect("text");
        assert_eq!(run.status.code(), Some(status), "{words:?}: {said}");
        assert!(said.contains(wanted), "{words:?}: {said}");
    }
}

#[test]
fn gdb_itself_debugs_one_element_of_four() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xbgas/tests/programs/single.c");
    let program = folder().join("single");
    if !compile_xbgas_program(&source, 2018, &program) {
        return;
    }
    let name = program.to_str().expect("text");
    let words = ["--pes", "4", "--gdb", "localhost:0", "--gdb-element", "2", name, "figure"];
    let (child, messages, at) = start(&words);
    let connect = format!("target remote {at}");
    let run = Command::new("gdb-multiarch")
        .args(["-nx", "-batch", "-ex", &connect, "-ex", "break figure", "-ex", "continue"])
        .args(["-ex", "backtrace", "-ex", "next", "-ex", "print static_word"])
        .args(["-ex", "stepi", "-ex", "info registers pc e10", "-ex", "print $fa0"])
        .args(["-ex", "delete", "-ex", "continue"])
        .arg(&program)
        .output();
    let Ok(run) = run else {
        println!("skipped: gdb-multiarch is not installed");
        let mut child = child;
        child.kill().expect("it is ended");
        child.wait().expect("it has ended");
        return;
    };
    let text = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.concat();
    for wanted in ["figure ()", "main (count", "$1 = 102", "e10 ", "$2 = ", "exited normally"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert_eq!(end(child, messages), (Some(0), String::new()));
}
