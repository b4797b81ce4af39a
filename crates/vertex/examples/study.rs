//! The study of the MCHPC 2018 paper: three algorithms on RMAT graphs of scale 6 to 14, before and
//! after each transformation. Prints the tables of `docs/results/migratory.md` and writes its
//! pictures into a folder.
//!
//! `cargo run --release -p terrace-vertex --example study FOLDER [LAST_SCALE]`

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use terrace_migratory::simulation::{simulate, SimulationLimits};
use terrace_migratory::MigratoryMachine;
use terrace_report::figure::{bar_figure, BarSeries};
use terrace_vertex::compile::compile;
use terrace_vertex::generate::GraphRecipe;
use terrace_vertex::layout::DataLayout;
use terrace_vertex::parse::parse;
use terrace_vertex::passes::{Pass, PassContext};
use terrace_vertex::programs::shipped;

/// What is transformed, how, on which graphs; and what the paper gives.
struct Subject {
    title: &'static str,
    program: &'static str,
    passes: &'static [&'static str],
    order: &'static str,
    layouts: &'static [&'static str],
    /// Geometric means of migrations saved, percent, and of speedups.
    paper: &'static [(f64, Option<f64>)],
    /// Table 2: migrations of the original program, scale 6 to 14.
    paper_migrations: [u64; 9],
}

const SUBJECTS: [Subject; 3] = [
    Subject {
        title: "Conductance",
        program: "conductance",
        passes: &["fusion"],
        order: "natural",
        layouts: &["edges-striped", "striped", "pointers"],
        paper: &[(6.06, Some(1.95))],
        paper_migrations: [
            6938, 13_812, 28_221, 59_068, 122_088, 253_364, 522_530, 1_065_640, 2_171_311,
        ],
    },
    Subject {
        title: "Shortest paths by Bellman and Ford",
        program: "bellman-ford-pull",
        passes: &["flip", "remote"],
        order: "natural",
        layouts: &["edges-striped", "striped", "pointers"],
        paper: &[(8.69, None), (30.28, Some(1.57))],
        paper_migrations: [
            10_915, 22_851, 48_354, 104_653, 220_204, 474_118, 1_136_600, 2_332_741, 4_569_519,
        ],
    },
    Subject {
        title: "Triangle counting",
        program: "triangles",
        passes: &["remote"],
        order: "degree",
        layouts: &["striped", "pointers"],
        paper: &[(54.55, Some(1.05))],
        paper_migrations: [
            26_407,
            84_168,
            252_440,
            809_423,
            2_475_350,
            7_381_977,
            21_777_902,
            64_063_958,
            180_988_114,
        ],
    },
];

/// A program's figures before and after each pass.
#[derive(Clone)]
struct Measurement {
    migrations: Vec<u64>,
    seconds: Vec<f64>,
    /// CPU time of the host's thread, all runs.
    simulating_s: f64,
}

/// CPU time of this thread, seconds; 0 where the kernel does not say.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

fn measure(subject: &Subject, layout: &str, scale: u32) -> Result<Measurement, String> {
    let machine = MigratoryMachine::emu_chick();
    let recipe = format!("rmat:scale={scale},edges=16,order={}", subject.order);
    let recipe = GraphRecipe::parse(&recipe).ok_or("no recipe")?.map_err(|e| e.to_string())?;
    let graph = recipe.draw().map_err(|e| e.to_string())?;
    let text = shipped(subject.program).ok_or("no such program")?;
    let mut program = parse(text).map_err(|e| e.to_string())?;
    let layout = DataLayout::named(layout).ok_or("no such layout")?;
    let context = PassContext { graph: &graph, copy_bytes: 0 };
    let mut measured =
        Measurement { migrations: Vec::new(), seconds: Vec::new(), simulating_s: 0.0 };
    let mut expected = None;
    for step in 0..=subject.passes.len() {
        if let Some(name) = step.checked_sub(1).map(|last| subject.passes[last]) {
            let pass = Pass::named(name).ok_or("no such pass")?;
            program = pass.apply(&program, context).map_err(|e| e.to_string())?.program;
        }
        let compiled = compile(&program, &graph, &[], layout, machine.nodelets())
            .map_err(|e| e.to_string())?;
        let mut memory = compiled.memory.clone();
        let (limits, begun_s) = (SimulationLimits::default(), cpu_seconds());
        let counters = simulate(&machine, &compiled.map, &compiled.code, &mut memory, limits)
            .map_err(|e| e.to_string())?;
        measured.simulating_s += cpu_seconds() - begun_s;
        let results = compiled.results(&memory).map_err(|e| e.to_string())?;
        if *expected.get_or_insert(results.clone()) != results {
            return Err(format!("{} of scale {scale} computes something else", subject.program));
        }
        measured.migrations.push(counters.migrations());
        measured.seconds.push(counters.seconds());
    }
    Ok(measured)
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        // A transformation that saves nothing has no geometric mean.
        if value <= 0.0 {
            return 0.0;
        }
        sum += value.ln();
        count += 1.0;
    }
    (sum / f64::max(count, 1.0)).exp()
}

fn saved(measured: &Measurement, step: usize) -> f64 {
    let (before, after) = (measured.migrations[step], measured.migrations[step + 1]);
    (1.0 - after as f64 / before as f64) * 100.0
}

fn speedup(measured: &Measurement, step: usize) -> f64 {
    measured.seconds[step] / measured.seconds[step + 1]
}

fn main() -> Result<(), String> {
    let folder = std::env::args().nth(1).ok_or("give a folder for the pictures")?;
    let last: u32 = std::env::args().nth(2).map_or(Ok(14), |word| word.parse()).unwrap_or(14);
    let scales: Vec<u32> = (6..=last.clamp(6, 14)).collect();
    let mut jobs = Vec::new();
    for (index, subject) in SUBJECTS.iter().enumerate() {
        for layout in subject.layouts {
            jobs.extend(scales.iter().map(|scale| (index, *layout, *scale)));
        }
    }
    // The longest first.
    jobs.sort_by_key(|(_, _, scale)| std::cmp::Reverse(*scale));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let measured = measure(&SUBJECTS[job.0], job.1, job.2);
                    if let Ok(mut done) = done.lock() {
                        done.push((*job, measured));
                    }
                }
            });
        }
    });
    let done = done.into_inner().map_err(|e| e.to_string())?;
    let mut layouts = Vec::new();
    for (index, subject) in SUBJECTS.iter().enumerate() {
        println!("## {}\n", subject.title);
        for layout in subject.layouts {
            let mut rows = Vec::new();
            for scale in &scales {
                let found = done.iter().find(|(job, _)| *job == (index, *layout, *scale));
                rows.push(found.ok_or("a job is missing")?.1.clone()?);
            }
            print_layout(subject, layout, &scales, &rows);
            let migrations: u64 = rows.iter().flat_map(|row| &row.migrations).sum();
            let seconds: f64 = rows.iter().map(|row| row.simulating_s).sum();
            eprintln!(
                "{}, {layout}: {:.1} million migrations, {seconds:.1} s of CPU time",
                subject.title,
                migrations as f64 / 1e6
            );
            layouts.push((index, *layout, rows));
        }
    }
    write_figures(Path::new(&folder), &scales, &layouts)
}

/// Measurements of a subject in a layout, by scale.
type LayoutRows = (usize, &'static str, Vec<Measurement>);

/// Figures 2 to 5 of the paper, with our figures.
fn write_figures(folder: &Path, scales: &[u32], layouts: &[LayoutRows]) -> Result<(), String> {
    let categories: Vec<String> = scales.iter().map(u32::to_string).collect();
    let series = |subject: usize, step: usize, of: fn(&Measurement, usize) -> f64| {
        let rows = layouts.iter().filter(move |(index, ..)| *index == subject);
        rows.map(move |(_, layout, rows)| BarSeries {
            name: (*layout).to_owned(),
            values: rows.iter().map(|row| of(row, step)).collect(),
        })
        .collect::<Vec<_>>()
    };
    // The paper compares both transformations of shortest paths with the original.
    let both = |of: fn(&Measurement, usize) -> f64| {
        let rows = layouts.iter().find(|(index, ..)| *index == 1).map(|(.., rows)| rows);
        [("flipped", 0), ("flipped, remote updates", 1)].map(|(name, step)| BarSeries {
            name: name.to_owned(),
            values: rows.into_iter().flatten().map(|row| of(row, step)).collect(),
        })
    };
    let saved_of_first: fn(&Measurement, usize) -> f64 =
        |row, step| (1.0 - row.migrations[step + 1] as f64 / row.migrations[0] as f64) * 100.0;
    let speedup_of_first: fn(&Measurement, usize) -> f64 =
        |row, step| row.seconds[0] / row.seconds[step + 1];
    let figures = [
        ("figure-2", "Conductance, fused: migrations saved", series(0, 0, saved), "%"),
        ("figure-2-speedup", "Conductance, fused: speedup", series(0, 0, speedup), ""),
        ("figure-3", "Shortest paths: migrations saved", both(saved_of_first).to_vec(), "%"),
        ("figure-4", "Shortest paths: speedup", both(speedup_of_first).to_vec(), ""),
        ("figure-5", "Triangles, remote updates: migrations saved", series(2, 0, saved), "%"),
        ("figure-5-speedup", "Triangles, remote updates: speedup", series(2, 0, speedup), ""),
    ];
    for (name, title, series, unit) in figures {
        let title = format!("{title}, by scale");
        let file = folder.join(format!("{name}.svg"));
        std::fs::write(&file, bar_figure(&title, &categories, &series, unit))
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

fn print_layout(subject: &Subject, layout: &str, scales: &[u32], rows: &[Measurement]) {
    println!("### Layout {layout}, {} order\n", subject.order);
    let mut head = "| scale | migrations | paper | ms |".to_owned();
    for pass in subject.passes {
        head += &format!(" {pass} saves | speedup |");
    }
    println!("{head}\n|{}", "---|".repeat(4 + 2 * subject.passes.len()));
    for (scale, row) in scales.iter().zip(rows) {
        let paper = subject.paper_migrations[*scale as usize - 6];
        let mut line = format!("| {scale} | {} | {paper} |", row.migrations[0]);
        line += &format!(" {:.2} |", row.seconds[0] * 1e3);
        for step in 0..subject.passes.len() {
            line += &format!(" {:.1}% | {:.2} |", saved(row, step), speedup(row, step));
        }
        println!("{line}");
    }
    let mut mean = "| geometric mean | | | |".to_owned();
    let mut paper = "| paper | | | |".to_owned();
    for (step, (percent, times)) in subject.paper.iter().enumerate() {
        let saved = geometric_mean(rows.iter().map(|row| saved(row, step)));
        let speedup = geometric_mean(rows.iter().map(|row| speedup(row, step)));
        mean += &format!(" {saved:.2}% | {speedup:.2} |");
        let times = times.map_or(String::new(), |times| format!("{times:.2}"));
        paper += &format!(" {percent:.2}% | {times} |");
    }
    println!("{mean}\n{paper}\n");
}
