//! The connection to a debugger: over this host's loopback, or a socket in a folder.

use super::DebugError;
use gdbstub::conn::{Connection, ConnectionExt};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, TryRecvError};

/// Where a debugger connects. The protocol has no secrets, so other hosts cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DebugAddress {
    /// A TCP port of 127.0.0.1; 0: any that is free.
    Port(u16),
    /// A socket that is made there, and removed once a debugger has come.
    Socket(PathBuf),
}

impl DebugAddress {
    /// Reads `PORT`, `localhost:PORT`, or a path with a slash; `None` for other texts.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains('/') {
            return Some(Self::Socket(text.into()));
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let is_loopback = ["", "localhost", "127.0.0.1"].contains(&host);
        is_loopback.then(|| port.parse().ok().map(Self::Port)).flatten()
    }
}

/// A debugger that has connected.
pub(super) struct DebuggerConnection {
    /// What it sends, until it goes away.
    incoming: Receiver<u8>,
    next: Option<u8>,
    outgoing: Box<dyn Write>,
    /// Not sent yet: answers leave whole.
    unsent: Vec<u8>,
}

impl DebuggerConnection {
    /// Waits for one; the connection, and where it is.
    pub(super) fn accept(
        address: &DebugAddress,
        announce: &mut dyn FnMut(&str),
    ) -> std::result::Result<(Self, String), DebugError> {
        let mut name = match address {
            DebugAddress::Port(port) => format!("localhost:{port}"),
            DebugAddress::Socket(path) => path.display().to_string(),
        };
        let accepted = match address {
            DebugAddress::Port(port) => {
                TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).and_then(|listener| {
                    name = format!("localhost:{}", listener.local_addr()?.port());
                    announce(&name);
                    let (stream, _) = listener.accept()?;
                    // Packets are small, and each waits for its answer.
                    stream.set_nodelay(true)?;
                    Ok(Self::new(stream.try_clone()?, stream))
                })
            }
            DebugAddress::Socket(path) => UnixListener::bind(path).and_then(|listener| {
                announce(&name);
                let accepted = listener.accept();
                // A name that stays behind misleads, and does no other harm.
                let _ = std::fs::remove_file(path);
                let (stream, _) = accepted?;
                Ok(Self::new(stream.try_clone()?, stream))
            }),
        };
        match accepted {
            Ok(connection) => Ok((connection, name)),
            Err(source) => Err(DebugError::Listen { address: name, source }),
        }
    }

    fn new(mut from: impl Read + Send + 'static, to: impl Write + 'static) -> Self {
        let (sender, incoming) = channel();
        // Not joined: it ends with the connection.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if bytes[..count].iter().any(|byte| sender.send(*byte).is_err()) {
                    return;
                }
            }
        });
        Self { incoming, next: None, outgoing: Box::new(to), unsent: Vec::new() }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "it closed the connection")
}

impl Connection for DebuggerConnection {
    type Error = Error;

    fn write(&mut self, byte: u8) -> Result<()> {
        self.unsent.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.outgoing.write_all(&std::mem::take(&mut self.unsent))
    }
}

impl ConnectionExt for DebuggerConnection {
    fn read(&mut self) -> Result<u8> {
        let next = self.next.take();
        next.map_or_else(|| self.incoming.recv().map_err(|_| closed()), Ok)
    }

    fn peek(&mut self) -> Result<Option<u8>> {
        if self.next.is_none() {
            self.next = match self.incoming.try_recv() {
                Ok(byte) => Some(byte),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return Err(closed()),
            };
        }
        Ok(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debuggers_connect_from_this_host_only() {
        let port = |text| DebugAddress::parse(text);
        assert_eq!(port("1234"), Some(DebugAddress::Port(1234)));
        assert_eq!(port(":1234"), port("localhost:1234"));
        assert_eq!(port("127.0.0.1:0"), Some(DebugAddress::Port(0)));
        assert_eq!(port("./a:b"), Some(DebugAddress::Socket("./a:b".into())));
        for wrong in ["", "host", "0.0.0.0:1234", "10.0.0.1:1", "localhost:", ":65536", "-1"] {
            assert_eq!(port(wrong), None, "{wrong}");
        }
    }
}
