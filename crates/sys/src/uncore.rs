//! Counters of the memory controllers: bytes read from and written to memory, by everybody.
//!
//! perf shows each controller as a device of its own with events by name
//! (`Documentation/ABI/testing/sysfs-bus-event_source-devices-events`; Intel's `uncore_imc_*`:
//! `arch/x86/events/intel/uncore_snbep.c`). Writes to Optane have no name there. Their event, 0xe7,
//! is `UNC_M_PMM_WPQ_INSERTS` of Intel's event list for Cascade Lake and Ice Lake servers: lines of
//! 64 bytes; it is asked for only where somebody knows that there is such memory.

use crate::perf::open_counter;
use crate::task::parse_list;
use crate::{Root, SysError};
use std::os::fd::{AsRawFd, OwnedFd};

/// What a controller's counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControllerTraffic {
    /// Bytes read from DRAM behind the controller.
    DramReads,
    /// Bytes written to it.
    DramWrites,
    /// Bytes written to persistent memory behind it.
    PmemWrites,
}

impl ControllerTraffic {
    /// The event's name in sysfs; none where it has none.
    const fn event(self) -> Option<&'static str> {
        match self {
            Self::DramReads => Some("cas_count_read"),
            Self::DramWrites => Some("cas_count_write"),
            Self::PmemWrites => None,
        }
    }
}

/// One memory controller's counter of bytes, not open yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    /// Name of the device.
    pub name: String,
    /// One CPU of each socket that has such a controller: it counts there.
    pub cpus: Vec<u32>,
    kind: u32,
    config: u64,
    bytes: f64,
}

const DEVICES: &str = "/sys/bus/event_source/devices";
const LINE: f64 = 64.0;
/// At most so many as anybody has.
const SOCKETS: usize = 256;

/// Controllers of this machine that count this traffic. None is no error: most machines show
/// none.
#[must_use]
pub fn controllers(root: &Root, to: ControllerTraffic) -> Vec<Controller> {
    let Ok(entries) = std::fs::read_dir(root.path(DEVICES)) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with("uncore_imc") && !name.contains("free_running"));
    names.sort();
    names.into_iter().filter_map(|name| controller(root, name, to)).collect()
}

fn controller(root: &Root, name: String, to: ControllerTraffic) -> Option<Controller> {
    let text = |file: &str| root.text(&format!("{DEVICES}/{name}/{file}")).ok();
    let (event, bytes) = match to.event() {
        Some(name) => {
            let bytes = match text(&format!("events/{name}.scale")) {
                Some(scale) => {
                    let unit = text(&format!("events/{name}.unit"));
                    scale.trim().parse::<f64>().ok()? * unit_of(unit.as_deref())?
                }
                None => LINE,
            };
            (text(&format!("events/{name}"))?, bytes)
        }
        None => ("event=0xe7".to_owned(), LINE),
    };
    let config = config(event.trim(), |term| text(&format!("format/{term}")))?;
    let kind = text("type")?.trim().parse().ok()?;
    let cpus = parse_list(&text("cpumask")?, SOCKETS)?;
    (bytes.is_finite() && bytes > 0.0).then_some(Controller { name, cpus, kind, config, bytes })
}

fn unit_of(text: Option<&str>) -> Option<f64> {
    match text.map_or("Bytes", str::trim) {
        "Bytes" => Some(1.0),
        "KiB" => Some(1024.0),
        "MiB" => Some(1_048_576.0),
        "MB" => Some(1e6),
        _ => None,
    }
}

/// `event=0x04,umask=0x03` with each term's place, such as `config:8-15`. Terms that are not in
/// `config` are not understood.
fn config(event: &str, place: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut config = 0;
    for term in event.split(',') {
        let (name, value) = term.split_once('=').unwrap_or((term, "1"));
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return None;
        }
        let value = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok()?,
            None => value.parse().ok()?,
        };
        let place = place(name)?;
        let bits = place.trim().strip_prefix("config:")?;
        let (low, high) = bits.split_once('-').unwrap_or((bits, bits));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        let width = high.checked_sub(low)? + 1;
        let fits = high < 64 && (width == 64 || value >> width == 0);
        config |= fits.then_some(value << low)?;
    }
    Some(config)
}

impl Controller {
    /// Begins to count on the socket that `cpu` is of.
    ///
    /// # Errors
    /// [`SysError::NotPermitted`] without CAP_PERFMON.
    pub fn open(&self, cpu: u32) -> Result<TrafficCounter, SysError> {
        let target = format!("{} on CPU {cpu}", self.name);
        Ok(TrafficCounter {
            fd: open_counter(self.kind, self.config, cpu, target)?,
            bytes: self.bytes,
        })
    }
}

/// An open counter.
#[derive(Debug)]
pub struct TrafficCounter {
    fd: OwnedFd,
    bytes: f64,
}

impl TrafficCounter {
    /// Bytes counted since it was opened; what others' counters kept it from counting is made up
    /// for by its share of the time.
    #[must_use]
    pub fn bytes(&self) -> Option<f64> {
        // Count, time enabled, time running.
        let mut words = [0_u64; 3];
        let size = std::mem::size_of_val(&words);
        // SAFETY: `words` is `size` writable bytes; the descriptor is open.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), words.as_mut_ptr().cast(), size) };
        let [count, enabled, running] = words;
        (got == size as isize && running > 0)
            .then(|| count as f64 * self.bytes * (enabled as f64 / running as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(term: &str) -> Option<String> {
        match term {
            "event" => Some("config:0-7\n".to_owned()),
            "umask" => Some("config:8-15\n".to_owned()),
            "edge" => Some("config:18\n".to_owned()),
            "far" => Some("config1:0-7\n".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn events_become_words_and_what_is_not_understood_does_not() {
        assert_eq!(config("event=0x04,umask=0x0c", place), Some(0x0c04));
        assert_eq!(config("event=5,edge", place), Some(5 | 1 << 18));
        for strange in ["event=0x104", "event=", "other=1", "far=1", "../event=1", "event=-1", ""] {
            assert_eq!(config(strange, place), None, "{strange}");
        }
    }

    /// A made-up controller whose type and event are those of the kernel's own clock: what is
    /// opened and read is real.
    #[test]
    fn a_controller_is_found_opened_and_read() {
        let dir = std::env::temp_dir().join(format!("terrace-uncore-{}", std::process::id()));
        let device = dir.join("sys/bus/event_source/devices/uncore_imc_0");
        let write = |file: &str, text: &str| {
            let path = device.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let root = Root::with_prefix(&dir);
        assert_eq!(controllers(&root, ControllerTraffic::DramWrites), []);
        // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK: nanoseconds.
        for (file, text) in [("type", "1\n"), ("cpumask", "0\n"), ("format/event", "config:0-7\n")]
        {
            write(file, text);
        }
        write("events/cas_count_write", "event=0x0\n");
        write("events/cas_count_write.scale", "0.5\n");
        write("events/cas_count_write.unit", "KiB\n");
        let found = controllers(&root, ControllerTraffic::DramWrites);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].cpus.as_slice(), found[0].bytes), (&[0][..], 512.0));
        assert_eq!(controllers(&root, ControllerTraffic::PmemWrites)[0].config, 0xe7);
        match found[0].open(0) {
            Ok(counter) => {
                let first = counter.bytes().unwrap();
                let begun = crate::now();
                while crate::now().since(begun) < terrace_types::Nanos::millis(2) {}
                assert!(counter.bytes().unwrap() >= first + 512.0 * 1e6);
            }
            Err(e) => println!("skipped: {e}"),
        }
        write("events/cas_count_write.unit", "furlongs\n");
        assert_eq!(controllers(&root, ControllerTraffic::DramWrites), []);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
