//! The guest's end of the mailbox: a shared-memory PCI device whose second BAR is a file of the
//! host.

use crate::kernel::GuestMapping;
use crate::wire::{self, ArchiveWriter, MailboxHeader, MailboxState, Reply, WireError};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The mapped mailbox.
pub struct Mailbox {
    map: GuestMapping,
}

impl Mailbox {
    /// Find the device below a sysfs root (`/sys` in life) and map it.
    pub fn open(sysfs: &Path) -> io::Result<Self> {
        let device =
            find_device(sysfs)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        // SeaBIOS leaves memory decoding on; a firmware that does not is helped here.
        let _ = fs::write(device.join("enable"), "1");
        let path = device.join("resource2");
        let len = fs::metadata(&path)?.len() as usize;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let map = GuestMapping::shared(&file, len)?;
        // A command that is started would first have to give its copy back.
        map.keep_from_children()?;
        Ok(Mailbox { map })
    }

    /// Say that the guest polls.
    pub fn announce(&self) {
        self.map.copy_in(0, &MailboxHeader { state: MailboxState::Ready, len: 0, sum: 0 }.encode());
    }

    /// Whether the host has put something since [`Mailbox::announce`].
    pub fn has_news(&self) -> bool {
        // The state word is at offset 12; a fresh file of the host with a job has a state other
        // than Ready.
        self.map.load_u32(12).is_some_and(|code| code > 1)
    }

    /// The job's archive, checked against its sum.
    pub fn take_job(&self) -> Result<Vec<u8>, WireError> {
        let head = self
            .map
            .copy_out(0, wire::HEADER_LEN)
            .ok_or(WireError::Truncated { what: "header" })?;
        let header = MailboxHeader::decode(&head)?;
        if header.state != MailboxState::Job {
            return Err(WireError::Missing("job"));
        }
        let len =
            usize::try_from(header.len).map_err(|_| WireError::TooLarge { what: "archive" })?;
        let bytes = self
            .map
            .copy_out(wire::BODY_OFFSET, len)
            .ok_or(WireError::Truncated { what: "archive" })?;
        if wire::checksum(&bytes) != header.sum {
            return Err(WireError::BadChecksum);
        }
        Ok(bytes)
    }

    /// Bytes that an archive may have.
    pub fn space(&self) -> usize {
        wire::archive_capacity(self.map.len() as u64) as usize
    }

    /// Put an archive and then the state that makes it visible. False if it does not fit.
    pub fn put(&self, state: MailboxState, archive: &[u8]) -> bool {
        if !self.map.copy_in(wire::BODY_OFFSET, archive) {
            return false;
        }
        // The host looks only after the machine has powered off, so no further ordering is needed.
        let header =
            MailboxHeader { state, len: archive.len() as u64, sum: wire::checksum(archive) };
        self.map.copy_in(0, &header.encode())
    }

    /// Say why nothing was run.
    pub fn refuse(&self, why: String) {
        let mut archive = ArchiveWriter::new();
        if let Ok(json) = wire::to_json(&Reply::not_started(why)) {
            archive.add(wire::REPLY_NAME, 0o600, &json);
        }
        self.put(MailboxState::Refused, &archive.finish());
    }
}

/// The shared-memory device (vendor 1af4, device 1110), if the machine has one.
fn find_device(sysfs: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(sysfs.join("bus/pci/devices"))? {
        let path = entry?.path();
        let is = |file: &str, want: &str| {
            fs::read_to_string(path.join(file)).is_ok_and(|s| s.trim() == want)
        };
        if is("vendor", "0x1af4") && is("device", "0x1110") {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
