//! A client of QEMU's machine protocol: enough to stop a guest, save it and quit.

use crate::error::{LabError, Result};
use crate::stop::StopFlag;
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one read waits before the caller's own limit is looked at again.
const READ_SLICE: Duration = Duration::from_millis(200);
/// Longest line that QEMU can sensibly send.
const MAX_LINE: usize = 1 << 20;

/// One connection to a running QEMU.
pub struct Monitor {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    /// What has come of a line that is not whole yet.
    partial: Vec<u8>,
    /// Events that came while a command's answer was awaited.
    events: Vec<String>,
    patience: Duration,
    stop: StopFlag,
}

impl Monitor {
    /// Connect, waiting for the socket to appear, and greet.
    pub fn connect(socket: &Path, patience: Duration, stop: StopFlag) -> Result<Self> {
        let deadline = Instant::now() + patience;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(e) if Instant::now() >= deadline => {
                    return Err(failed("connect", e.to_string()));
                }
                Err(_) => {
                    stop.check()?;
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        };
        stream.set_read_timeout(Some(READ_SLICE)).map_err(|e| failed("connect", e.to_string()))?;
        let writer = stream.try_clone().map_err(|e| failed("connect", e.to_string()))?;
        let reader = BufReader::new(stream);
        let mut monitor =
            Monitor { reader, writer, partial: Vec::new(), events: Vec::new(), patience, stop };
        monitor.read_message("greeting", patience)?;
        monitor.command("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Run one command and return its result; events in between are kept for
    /// [`Monitor::wait_event`].
    pub fn command(&mut self, name: &str, arguments: Value) -> Result<Value> {
        let mut line = json!({"execute": name, "arguments": arguments}).to_string();
        line.push('\n');
        self.writer.write_all(line.as_bytes()).map_err(|e| failed(name, e.to_string()))?;
        loop {
            let message = self.read_message(name, self.patience)?;
            match answer(&message, name)? {
                Some(result) => return Ok(result),
                None => self.note_event(&message),
            }
        }
    }

    /// Wait for an event of this name.
    pub fn wait_event(&mut self, name: &'static str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(at) = self.events.iter().position(|e| e == name) {
                self.events.remove(at);
                return Ok(());
            }
            let message =
                self.read_message(name, deadline.saturating_duration_since(Instant::now()))?;
            self.note_event(&message);
        }
    }

    fn note_event(&mut self, message: &Value) {
        self.events.extend(message.get("event").and_then(Value::as_str).map(str::to_string));
    }

    /// Guest-physical address of the memory behind a PCI device's BAR.
    pub fn bar_address(&mut self, vendor: u64, device: u64, bar: u64) -> Result<u64> {
        let answer = self.command("query-pci", json!({}))?;
        find_bar(&answer, vendor, device, bar).ok_or_else(|| {
            failed("query-pci", format!("no device {vendor:04x}:{device:04x} with BAR {bar}"))
        })
    }

    /// Write guest-physical memory to a file.
    pub fn dump_memory(&mut self, address: u64, bytes: u64, file: &Path) -> Result<()> {
        self.command(
            "pmemsave",
            json!({"val": address, "size": bytes, "filename": file.display().to_string()}),
        )
        .map(drop)
    }

    /// Stop the guest and write its device state (and unshared memory) to a file.
    pub fn save(&mut self, file: &Path, patience: Duration) -> Result<()> {
        self.command("stop", json!({}))?;
        self.ignore_shared()?;
        self.command("migrate", json!({"uri": format!("file:{}", file.display())}))?;
        self.wait_migrated(patience)
    }

    /// Read a saved state, wait until it is whole, and let the guest run on (it was saved stopped).
    ///
    /// An awakened QEMU announces itself to networks for a second, by timers of the host's clock,
    /// network cards or not. Each one that comes due cuts a vCPU's turn short, so that what the
    /// others have done by then depends on the host (ADR 0227): none are asked for.
    pub fn wake(&mut self, file: &Path, patience: Duration) -> Result<()> {
        self.ignore_shared()?;
        self.command("migrate-set-parameters", json!({"announce-rounds": 0}))?;
        self.command("migrate-incoming", json!({"uri": format!("file:{}", file.display())}))?;
        self.wait_migrated(patience)?;
        self.command("cont", json!({})).map(drop)
    }

    /// Shared memory (the mailbox, and the nodes' files while booting) is not part of a saved
    /// state.
    fn ignore_shared(&mut self) -> Result<()> {
        let capability = json!({"capability": "x-ignore-shared", "state": true});
        self.command("migrate-set-capabilities", json!({"capabilities": [capability]})).map(drop)
    }

    fn wait_migrated(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let status = self.command("query-migrate", json!({}))?;
            match status.get("status").and_then(Value::as_str) {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => return Err(failed("migrate", status.to_string())),
                _ if Instant::now() >= deadline => {
                    return Err(failed("migrate", "takes too long".into()))
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn read_message(&mut self, during: &str, patience: Duration) -> Result<Value> {
        let deadline = Instant::now() + patience;
        loop {
            match self.reader.read_until(b'\n', &mut self.partial) {
                Ok(0) => return Err(failed(during, CLOSED.into())),
                Ok(_) if self.partial.last() == Some(&b'\n') => {
                    let line = std::mem::take(&mut self.partial);
                    return serde_json::from_slice(&line)
                        .map_err(|e| failed(during, e.to_string()));
                }
                Ok(_) if self.partial.len() > MAX_LINE => {
                    return Err(failed(during, "an endless line".into()))
                }
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) =>
                {
                    self.stop.check()?;
                    if Instant::now() >= deadline {
                        return Err(failed(during, SLOW.into()));
                    }
                }
                Err(e) => return Err(failed(during, e.to_string())),
            }
        }
    }
}

const CLOSED: &str = "the connection was closed";
const SLOW: &str = "no answer in time";

/// Whether a failure of the monitor means that QEMU took too long (rather than ended).
pub fn was_too_slow(error: &LabError) -> bool {
    matches!(error, LabError::Monitor { why, .. } if why == SLOW)
}

fn find_bar(answer: &Value, vendor: u64, device: u64, bar: u64) -> Option<u64> {
    let buses = answer.as_array()?;
    buses.iter().filter_map(|b| b.get("devices")?.as_array()).flatten().find_map(|d| {
        let id = d.get("id")?;
        if id.get("vendor")?.as_u64()? != vendor || id.get("device")?.as_u64()? != device {
            return None;
        }
        d.get("regions")?
            .as_array()?
            .iter()
            .find(|r| r.get("bar").and_then(Value::as_u64) == Some(bar))?
            .get("address")?
            .as_u64()
    })
}

/// `Some` for a command's result, `None` for an event.
fn answer(message: &Value, name: &str) -> Result<Option<Value>> {
    if let Some(error) = message.get("error") {
        let why = error.get("desc").and_then(Value::as_str).unwrap_or("unknown error");
        return Err(failed(name, why.to_string()));
    }
    Ok(message.get("return").cloned())
}

fn failed(command: &str, why: String) -> LabError {
    LabError::Monitor { command: command.to_string(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_errors_and_events_are_distinguished() {
        assert_eq!(answer(&json!({"return": {}}), "x").unwrap(), Some(json!({})));
        assert_eq!(answer(&json!({"event": "STOP"}), "x").unwrap(), None);
        let e = answer(&json!({"error": {"class": "GenericError", "desc": "no such thing"}}), "x")
            .unwrap_err();
        assert!(e.to_string().contains("no such thing"));
    }

    #[test]
    fn the_mailbox_is_found_among_the_devices() {
        let region = json!({"bar": 2, "address": 0xe000_0000u64, "type": "memory"});
        let devices = json!([{"bus": 0, "devices": [
            {"id": {"vendor": 0x8086, "device": 0x29c0}, "regions": []},
            {"id": {"vendor": 0x1af4, "device": 0x1110},
                "regions": [{"bar": 0, "address": 1}, region]}]}]);
        assert_eq!(find_bar(&devices, 0x1af4, 0x1110, 2), Some(0xe000_0000));
        assert_eq!(find_bar(&devices, 0x1af4, 0x1111, 2), None);
        assert_eq!(find_bar(&json!({}), 0x1af4, 0x1110, 2), None);
    }

    /// A monitor whose peer gives these answers, one for each command, and then hangs up; the
    /// peer's end tells the commands.
    fn scripted(
        name: &str,
        answers: &'static [&'static str],
    ) -> (Monitor, std::thread::JoinHandle<Vec<Value>>) {
        use std::os::unix::net::UnixListener;
        let path = std::env::temp_dir().join(format!("terrace-qmp-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let peer = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut writer = stream.try_clone().unwrap();
            let mut lines = BufReader::new(stream).lines();
            writer.write_all(b"{\"QMP\":{}}\n").unwrap();
            let answered = answers.iter().map(|answer| {
                let command = lines.next().unwrap().unwrap();
                writer.write_all(format!("{answer}\n").as_bytes()).unwrap();
                serde_json::from_str(&command).unwrap()
            });
            answered.collect()
        });
        let monitor = Monitor::connect(&path, Duration::from_secs(5), StopFlag::default()).unwrap();
        let _ = std::fs::remove_file(&path);
        (monitor, peer)
    }

    #[test]
    fn talks_to_a_scripted_monitor() {
        const STATUS: &str = "{\"event\":\"STOP\"}\n{\"return\":{\"status\":\"ok\"}}";
        let (mut m, peer) = scripted("status", &["{\"return\":{}}", STATUS]);
        assert_eq!(m.command("query-status", json!({})).unwrap(), json!({"status": "ok"}));
        m.wait_event("STOP", Duration::from_secs(5)).unwrap();
        peer.join().unwrap();
        assert!(m.command("again", json!({})).is_err());
    }

    #[test]
    fn an_awakened_machine_sets_no_timers_of_the_hosts_clock() {
        const DONE: &str = "{\"return\":{}}";
        const COMPLETED: &str = "{\"return\":{\"status\":\"completed\"}}";
        let (mut m, peer) = scripted("wake", &[DONE, DONE, DONE, DONE, COMPLETED, DONE]);
        m.wake(Path::new("/saved/state"), Duration::from_secs(5)).unwrap();
        let commands = peer.join().unwrap();
        let at = |name: &str| commands.iter().position(|c| c["execute"] == name).unwrap();
        let parameters = at("migrate-set-parameters");
        assert_eq!(commands[parameters]["arguments"]["announce-rounds"], 0);
        assert!(parameters < at("migrate-incoming") && at("migrate-incoming") < at("cont"));
    }
}
