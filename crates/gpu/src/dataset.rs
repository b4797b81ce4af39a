//! Samples to learn from: an array of a measured launch, its features, and what each placement
//! gained over global memory.

use crate::analysis::{analyze_kernel, analyze_tiles, KernelAccess, LaunchNumbers};
use crate::benchmark::Benchmark;
use crate::data::{
    read_counters, read_profile, read_shapes, read_timings, DataError, DeviceFigures, LaunchKey,
    MeasuredLaunch, ProblemShape,
};
use crate::features::{array_features, LaunchFacts};
use crate::placement::ArrayPlacement;
use crate::source::KernelSignature;
use crate::variant::KernelVariant;
use std::collections::BTreeMap;

/// The least difference that counts as one: 5%, as log2. Gains that were measured on two GPUs of
/// one kind (H100) differ by less in 95% of the cases: read-only path 0.045, texture 0.051, shared
/// 0.059, constant memory 0.074.
pub const LEAST_DIFFERENCE: f64 = 0.07;
/// The same for persisting lines in the L2 cache, whose gains differ more from run to run: 95% of
/// them by less than 0.134 between the two kinds of GPU.
pub const LEAST_L2_DIFFERENCE: f64 = 0.134;

/// An array of a launch.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementSample {
    /// The launch.
    pub key: LaunchKey,
    /// The benchmark's family.
    pub family: &'static str,
    /// The size's position among the benchmark's sizes.
    pub size_rank: usize,
    /// The array's position.
    pub array: usize,
    /// Features without counters.
    pub features: Vec<f64>,
    /// Counters of the global variant, where they were read.
    pub counters: Option<Vec<f64>>,
    /// log2 of global memory's time over the placement's, other arrays in global memory.
    pub gains: BTreeMap<ArrayPlacement, f64>,
    /// Differences below it are noise, log2.
    pub noise: f64,
}

impl PlacementSample {
    /// The gain of a placement; global memory gains nothing.
    #[must_use]
    pub fn gain(&self, placement: ArrayPlacement) -> f64 {
        self.gains.get(&placement).copied().unwrap_or(0.0)
    }

    /// The best placement, if it is better than global memory by more than noise.
    #[must_use]
    pub fn label(&self) -> ArrayPlacement {
        let best = self.gains.iter().max_by(|a, b| a.1.total_cmp(b.1));
        match best {
            Some((placement, gain)) if *gain > self.noise => *placement,
            _ => ArrayPlacement::Global,
        }
    }

    /// Whether no placement is better than this one by more than noise.
    #[must_use]
    pub fn is_best(&self, placement: ArrayPlacement) -> bool {
        self.best_gain() - self.gain(placement) <= self.noise
    }

    /// The gain of the best placement, at least that of global memory.
    #[must_use]
    pub fn best_gain(&self) -> f64 {
        self.gains.values().copied().fold(0.0, f64::max)
    }
}

/// Samples and launches of all devices.
#[derive(Debug, Clone, Default)]
pub struct PlacementDataset {
    /// The samples, by launch and array.
    pub samples: Vec<PlacementSample>,
    /// The launches.
    pub launches: BTreeMap<LaunchKey, MeasuredLaunch>,
    /// Profiles by device.
    pub devices: BTreeMap<String, DeviceFigures>,
    /// Names of the counters.
    pub counter_names: Vec<String>,
}

/// Files of one device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceFiles<'a> {
    /// Timings.
    pub timings: &'a str,
    /// The profile.
    pub profile: &'a str,
    /// Counters; may be empty.
    pub counters: &'a str,
}

/// The measurements in the repository.
#[must_use]
pub const fn recorded_devices() -> [DeviceFiles<'static>; 2] {
    [
        DeviceFiles {
            timings: include_str!("../data/h100-timings.csv"),
            profile: include_str!("../data/h100-profile.csv"),
            counters: include_str!("../data/h100-counters.csv"),
        },
        DeviceFiles {
            timings: include_str!("../data/h200-timings.csv"),
            profile: include_str!("../data/h200-profile.csv"),
            counters: include_str!("../data/h200-counters.csv"),
        },
    ]
}

/// The launch's numbers of a benchmark at a shape.
#[must_use]
pub fn launch_numbers(
    benchmark: &Benchmark,
    kernel: &KernelSignature,
    shape: &ProblemShape,
    block: [u32; 2],
) -> LaunchNumbers {
    let scalars = kernel.scalars.iter().zip(&shape.scalars);
    let [x, y, z] = shape.threads;
    LaunchNumbers {
        grid: [x.div_ceil(block[0].max(1)), y.div_ceil(block[1].max(1)), z],
        block: [block[0], block[1], 1],
        scalars: scalars.map(|(s, v)| (s.name.clone(), *v)).collect(),
        defines: benchmark.fixed_defines(),
    }
}

/// A launch's analysis, and those with a tile by array.
type Analyses = (KernelAccess, Vec<Option<KernelAccess>>);

/// Reads all files and makes the samples. Launches without a global time, and arrays that were
/// never placed elsewhere, give none.
///
/// # Errors
/// A file that cannot be read.
pub fn read_dataset(devices: &[DeviceFiles<'_>]) -> Result<PlacementDataset, DataError> {
    let shapes = read_shapes("problems.csv", include_str!("../data/problems.csv"))?;
    let mut dataset = PlacementDataset::default();
    let mut analyses: BTreeMap<(String, u64, [u32; 2]), Analyses> = BTreeMap::new();
    for files in devices {
        let (device, figures) = read_profile("profile.csv", files.profile)?;
        let counters = match files.counters {
            "" => BTreeMap::new(),
            text => read_counters("counters.csv", text)?,
        };
        if let Some(names) = counters.values().next() {
            dataset.counter_names = names.keys().cloned().collect();
        }
        for (key, launch) in read_timings("timings.csv", files.timings)? {
            let Some(benchmark) = Benchmark::named(&key.kernel) else { continue };
            let Ok(kernel) = benchmark.signature() else { continue };
            let Some(shape) = shapes.get(&(key.kernel.clone(), key.size)) else { continue };
            let numbers = launch_numbers(benchmark, &kernel, shape, key.block);
            let place = (key.kernel.clone(), key.size, key.block);
            let (access, tiled) = analyses.entry(place).or_insert_with(|| {
                let source = benchmark.source;
                let tiled = analyze_tiles(source, &kernel, &numbers);
                (analyze_kernel(source, &kernel, &numbers), tiled)
            });
            let facts = LaunchFacts {
                arrays: &kernel.arrays,
                elements: &shape.elements,
                access,
                tiled,
                block: numbers.block,
                grid: numbers.grid,
                device: &figures,
            };
            let counted = counters.get(&key).map(|c| c.values().copied().collect::<Vec<f64>>());
            let rank = benchmark.sizes.iter().position(|s| *s as u64 == key.size).unwrap_or(0);
            for array in 0..kernel.arrays.len() {
                let Some((gains, noise)) = gains(&launch, kernel.arrays.len(), array) else {
                    continue;
                };
                dataset.samples.push(PlacementSample {
                    key: key.clone(),
                    family: benchmark.family,
                    size_rank: rank,
                    array,
                    features: array_features(&facts, array),
                    counters: counted.clone(),
                    gains,
                    noise,
                });
            }
            dataset.launches.insert(key, launch);
        }
        dataset.devices.insert(device, figures);
    }
    Ok(dataset)
}

fn gains(
    launch: &MeasuredLaunch,
    arrays: usize,
    array: usize,
) -> Option<(BTreeMap<ArrayPlacement, f64>, f64)> {
    let all = KernelVariant::global(arrays);
    let global = launch.times.get(&all.to_string())?;
    let relative = |t: &crate::data::TimingSpread| (t.high_ns - t.low_ns) / t.median_ns;
    let mut noise = LEAST_DIFFERENCE.max(relative(global));
    let mut gains = BTreeMap::new();
    for placement in ArrayPlacement::ALL.into_iter().skip(1) {
        let Some(time) = launch.times.get(&all.with(array, placement).to_string()) else {
            continue;
        };
        gains.insert(placement, (global.median_ns / time.median_ns).log2());
    }
    let best = gains.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(p, _)| *p)?;
    if best == ArrayPlacement::PersistingL2 {
        noise = noise.max(LEAST_L2_DIFFERENCE);
    }
    if let Some(time) = launch.times.get(&all.with(array, best).to_string()) {
        noise = noise.max(relative(time));
    }
    Some((gains, noise))
}
