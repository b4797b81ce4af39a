//! Collects all measurements of a GPU: `collect compile FOLDER` prepares machine code without one,
//! `collect time|profile|counters FOLDER OUT` uses it. FOLDER keeps machine code, OUT takes CSV.

use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use terrace_gpu::benchmark::{Benchmark, ScalarValue, BENCHMARKS};
use terrace_gpu::measure::{
    hopper_limits, measure_profile, profile_units, run_counters, run_problem, CompileCache,
    CompileUnit, PreparedProblem, TimingProtocol,
};
use terrace_sys::compute::ComputeGpu;

const ARCHITECTURE: &str = "sm_90";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["compile", folder] => compile(Path::new(folder), BENCHMARKS.len(), usize::MAX),
        ["compile", folder, kernels, sizes] => {
            compile(Path::new(folder), kernels.parse()?, sizes.parse()?)
        }
        ["shapes", file] => shapes(file),
        ["time", folder, out, seconds] => time(folder, out, seconds.parse()?),
        ["profile", folder, out] => profile(folder, out),
        ["counters", folder, out] => counters(folder, out),
        _ => Err(
            "usage: collect compile FOLDER | time FOLDER OUT SECONDS | profile|counters FOLDER OUT"
                .into(),
        ),
    }
}

fn compile(folder: &Path, kernels: usize, sizes: usize) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let mut units = profile_units(&hopper_limits());
    for benchmark in BENCHMARKS.iter().take(kernels) {
        for size in benchmark.sizes.iter().take(sizes) {
            let kernel = benchmark.signature()?;
            let problem = (benchmark.problem)(*size);
            let elements = problem.elements(&kernel);
            for variant in terrace_gpu::variant::list_variants(&kernel, &elements, &hopper_limits())
            {
                for block in benchmark.blocks {
                    let b = *block;
                    units.push(CompileUnit::of_variant(benchmark, &kernel, &problem, b, &variant));
                }
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    units.retain(|unit| seen.insert(unit.file_name(ARCHITECTURE)));
    println!("{} units", units.len());
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let cache = CompileCache::new(Some(folder), ARCHITECTURE);
                while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = cache.code(unit) {
                        println!("{error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        0 => Ok(()),
        failed => Err(format!("{failed} units do not compile").into()),
    }
}

/// Lengths, scalars and threads of all problems, without their data.
fn shapes(file: &str) -> Result<(), Box<dyn Error>> {
    let mut csv = fs::File::create(file)?;
    writeln!(csv, "kernel,size,elements,scalars,threads")?;
    for benchmark in BENCHMARKS {
        let kernel = benchmark.signature()?;
        for size in benchmark.sizes {
            let problem = (benchmark.problem)(*size);
            let join = |numbers: &mut dyn Iterator<Item = i64>| {
                numbers.map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
            };
            let elements = problem.elements(&kernel);
            let elements = join(&mut elements.iter().map(|n| *n as i64));
            let scalars = join(&mut problem.scalars.iter().map(|s| match s {
                ScalarValue::Int(value) => i64::from(*value),
                ScalarValue::Float(value) => *value as i64,
            }));
            let threads = join(&mut problem.threads.iter().map(|t| i64::from(*t)));
            writeln!(csv, "{},{size},{elements},{scalars},{threads}", benchmark.kernel)?;
        }
    }
    Ok(())
}

fn time(folder: &str, out: &str, seconds: u64) -> Result<(), Box<dyn Error>> {
    let gpu = ComputeGpu::open(0)?;
    let cache = CompileCache::new(Some(Path::new(folder)), ARCHITECTURE);
    let device = gpu.limits().name.clone();
    let end = Instant::now() + Duration::from_secs(seconds);
    // The least sizes of all kernels first: if time runs out, each kernel has some.
    let most = BENCHMARKS.iter().map(|b| b.sizes.len()).max().unwrap_or(0);
    let jobs: Vec<(&'static Benchmark, usize)> = (0..most)
        .flat_map(|at| BENCHMARKS.iter().filter_map(move |b| Some((b, *b.sizes.get(at)?))))
        .collect();
    let mut csv = fs::File::create(PathBuf::from(out).join("timings.csv"))?;
    writeln!(csv,
        "device,kernel,size,block_x,block_y,variant,median_ns,low_ns,high_ns,runs,repeats,registers,static_shared_bytes,local_bytes,constant_bytes,dynamic_shared_bytes,resident_blocks")?;
    let next = AtomicUsize::new(0);
    let jobs = &jobs;
    let next = &next;
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let (sender, receiver) = sync_channel(4);
        for _ in 0..12 {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some((benchmark, size)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let prepared = PreparedProblem::prepare(benchmark, *size);
                    if sender.send(prepared).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for prepared in receiver {
            let prepared = prepared?;
            if Instant::now() > end {
                println!("out of time: {} {} left out", prepared.kernel.name, prepared.size);
                continue;
            }
            let start = Instant::now();
            let (timings, failures) =
                run_problem(&gpu, &cache, &prepared, &TimingProtocol::default());
            for t in &timings {
                let f = &t.figures;
                writeln!(
                    csv,
                    "{device},{},{},{},{},{},{:.1},{:.1},{:.1},{},{},{},{},{},{},{},{}",
                    t.kernel,
                    t.size,
                    t.block[0],
                    t.block[1],
                    t.variant,
                    t.median_ns,
                    t.low_ns,
                    t.high_ns,
                    t.runs,
                    t.repeats,
                    f.registers,
                    f.shared_bytes,
                    f.local_bytes,
                    f.constant_bytes,
                    t.dynamic_shared,
                    t.resident_blocks
                )?;
            }
            println!(
                "{} {}: {} timed, {} failed, {:.2} s",
                prepared.kernel.name,
                prepared.size,
                timings.len(),
                failures.len(),
                start.elapsed().as_secs_f64()
            );
            for failure in failures.iter().take(3) {
                println!("  {failure}");
            }
        }
        Ok(())
    })
}

fn profile(folder: &str, out: &str) -> Result<(), Box<dyn Error>> {
    let gpu = ComputeGpu::open(0)?;
    println!("{:?}", gpu.limits());
    let cache = CompileCache::new(Some(Path::new(folder)), ARCHITECTURE);
    let (rows, failures) = measure_profile(&gpu, &cache, &TimingProtocol::default());
    let mut csv = fs::File::create(PathBuf::from(out).join("profile.csv"))?;
    writeln!(csv, "device,name,value")?;
    for row in &rows {
        writeln!(csv, "{},{},{:.4}", gpu.limits().name, row.name, row.value)?;
    }
    println!("{} figures, {} failed", rows.len(), failures.len());
    failures.iter().take(5).for_each(|failure| println!("  {failure}"));
    Ok(())
}

/// One launch for each kernel, size and two block shapes, in the order that it writes.
fn counters(folder: &str, out: &str) -> Result<(), Box<dyn Error>> {
    let gpu = ComputeGpu::open(0)?;
    let cache = CompileCache::new(Some(Path::new(folder)), ARCHITECTURE);
    let mut csv = fs::File::create(PathBuf::from(out).join("launches.csv"))?;
    writeln!(csv, "launch,kernel,size,block_x,block_y")?;
    let mut launch = 0;
    for at in 0..4 {
        for benchmark in BENCHMARKS {
            let prepared = PreparedProblem::prepare(benchmark, benchmark.sizes[at])?;
            let blocks = [benchmark.blocks[1], benchmark.blocks[2]];
            for block in blocks {
                let (kernel, size) = (&prepared.kernel.name, prepared.size);
                writeln!(csv, "{launch},{kernel},{size},{},{}", block[0], block[1])?;
                launch += 1;
            }
            run_counters(&gpu, &cache, &prepared, &blocks)?;
        }
    }
    println!("{launch} launches");
    Ok(())
}
