//! Size and speed of the format on address streams like those of two kernels, or on a trace:
//! `cargo run --release -p terrace-trace --example speed [FILE]`.
#![forbid(unsafe_code)]

use std::io::{BufReader, Cursor, Read, Seek};
use std::sync::OnceLock;
use std::time::Instant;
use terrace_trace::{Access, Block, BlockKind, TraceError, TraceHeader, TraceReader, TraceWriter};

/// Words whose every load and store becomes an access with the program counter of its place in the
/// source.
struct Recorder {
    writer: TraceWriter<Vec<u8>>,
    count: u64,
}

impl Recorder {
    fn access(
        &mut self,
        pc: u64,
        address: u64,
        size: u32,
        store: bool,
        gap: u32,
    ) -> Result<(), TraceError> {
        self.count += 1;
        self.writer.access(
            0,
            0,
            &Access { address, size, store, depends: 0, gap, pc: 0x40_0000 + 4 * pc },
        )
    }
}

fn mix(x: u64) -> u64 {
    let z = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Sparse matrix times vector, class A's size: 14,000 rows of about 130 sorted columns, and two
/// vector updates.
fn cg_like(r: &mut Recorder, accesses: u64) -> Result<(), TraceError> {
    const ROWS: u64 = 14_000;
    let (matrix, columns, x, y) =
        (0x7f00_0000_0000u64, 0x7f10_0000_0000u64, 0x7f20_0000_0000u64, 0x7f20_0010_0000u64);
    while r.count < accesses {
        let mut k = 0;
        for row in 0..ROWS {
            r.access(1, 0x7f30_0000_0000 + 4 * row, 4, false, 4)?;
            r.access(2, 0x7f30_0000_0004 + 4 * row, 4, false, 1)?;
            let mut column = mix(row) % 100;
            while column < ROWS {
                r.access(3, columns + 4 * k, 4, false, 2)?;
                r.access(4, matrix + 8 * k, 8, false, 1)?;
                r.access(5, x + 8 * column, 8, false, 1)?;
                k += 1;
                column += 1 + mix(row << 20 ^ column) % 215;
            }
            r.access(6, y + 8 * row, 8, true, 3)?;
        }
        for row in 0..ROWS {
            r.access(7, y + 8 * row, 8, false, 2)?;
            r.access(8, x + 8 * row, 8, false, 1)?;
            r.access(9, x + 8 * row, 8, true, 2)?;
        }
    }
    Ok(())
}

/// Scanning vertices and looking at random neighbours, a skewed choice among a million.
fn bfs_like(r: &mut Recorder, accesses: u64) -> Result<(), TraceError> {
    let (levels, offsets, neighbours) =
        (0x7f00_0000_0000u64, 0x7f10_0000_0000u64, 0x7f20_0000_0000u64);
    let (mut vertex, mut edge) = (0u64, 0u64);
    while r.count < accesses {
        r.access(1, levels + 8 * vertex, 8, false, 4)?;
        if mix(vertex) % 4 == 0 {
            r.access(2, offsets + 8 * vertex, 8, false, 3)?;
            r.access(3, offsets + 8 * vertex + 8, 8, false, 1)?;
            for _ in 0..mix(vertex ^ 0x55) % 32 {
                r.access(4, neighbours + 8 * edge, 8, false, 3)?;
                let mut bits = 0;
                for b in 0..20 {
                    bits |= u64::from(mix(edge << 5 | b) % 100 < 24) << b;
                }
                r.access(5, levels + 8 * bits, 8, false, 1)?;
                if mix(edge ^ 0x77) % 8 == 0 {
                    r.access(6, levels + 8 * bits, 8, true, 2)?;
                }
                edge += 1;
            }
        }
        vertex = (vertex + 1) % (1 << 20);
    }
    Ok(())
}

/// Seconds of CPU this process has had, so that others on the machine do not count; else wall time.
fn cpu_seconds() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let stat = std::fs::read_to_string("/proc/self/schedstat").ok();
    let nanos = stat.and_then(|s| s.split(' ').next().and_then(|n| n.parse::<f64>().ok()));
    nanos.map_or_else(|| START.get_or_init(Instant::now).elapsed().as_secs_f64(), |n| n / 1e9)
}

/// Decodes all of it several times; the best time counts, for others may be using the machine.
fn read<R: Read + Seek>(
    name: &str,
    mut reader: TraceReader<R>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut block = Block::new()?;
    let (mut best, mut accesses, mut sum) = (f64::INFINITY, 0u64, 0u64);
    for _ in 0..5 {
        reader.rewind_to(0);
        let began = cpu_seconds();
        accesses = 0;
        while reader.next_block(&mut block)? {
            if block.info().kind == BlockKind::Accesses {
                accesses += u64::from(block.info().count);
                sum ^= block.addresses().last().copied().unwrap_or(0) ^ u64::from(block.gaps()[0]);
            }
        }
        best = best.min(cpu_seconds() - began);
    }
    let bytes = reader.length() as f64 / accesses as f64;
    let speed = accesses as f64 / best / 1e6;
    println!(
        "{name}: {accesses} accesses, {bytes:.3} bytes each, decoded {speed:.0} M/s ({:x})",
        sum & 0xf
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(file) = std::env::args().nth(1) {
        return read(&file, TraceReader::open(BufReader::new(std::fs::File::open(&file)?))?);
    }
    type Stream = fn(&mut Recorder, u64) -> Result<(), TraceError>;
    for (name, stream) in [("cg-like", cg_like as Stream), ("bfs-like", bfs_like)] {
        let mut recorder =
            Recorder { writer: TraceWriter::new(Vec::new(), &TraceHeader::default())?, count: 0 };
        let began = cpu_seconds();
        stream(&mut recorder, 20_000_000)?;
        let bytes = recorder.writer.finish()?;
        println!(
            "{name}: encoded {:.0} M/s",
            recorder.count as f64 / (cpu_seconds() - began) / 1e6
        );
        read(name, TraceReader::open(Cursor::new(bytes))?)?;
    }
    Ok(())
}
