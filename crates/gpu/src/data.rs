//! The measurements of a GPU as CSV: timings, the device's profile, counters, shapes of problems.

use std::collections::BTreeMap;

/// Longest file and most rows that are read.
const MOST_BYTES: usize = 64 << 20;

/// Why a file of measurements cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// Too long.
    #[error("{file} has {bytes} bytes; up to {MOST_BYTES} are read")]
    TooLong {
        /// The file.
        file: String,
        /// Its length.
        bytes: usize,
    },
    /// A column is missing.
    #[error("{file} has no column {column}; write it by `collect` of the crate gpu")]
    NoColumn {
        /// The file.
        file: String,
        /// The column.
        column: String,
    },
    /// A recorded run without launches of a kernel.
    #[error(
        "{file} has no launch of kernel {kernel}; record a run that launches it with `terrace \
        gpu profile -o`"
    )]
    NoLaunch {
        /// The file.
        file: String,
        /// The kernel.
        kernel: String,
    },
    /// A field is no number where one belongs, or is missing.
    #[error("{file}, line {line}: {column} is {value:?}, which is no number that fits")]
    BadField {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The column.
        column: String,
        /// What stands there, cut at 40 characters.
        value: String,
    },
}

/// A table with a header. Fields hold no commas or quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvTable<'a> {
    file: &'a str,
    header: Vec<&'a str>,
    lines: Vec<(usize, Vec<&'a str>)>,
}

impl<'a> CsvTable<'a> {
    /// Reads a table; empty lines are left out.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn read(file: &'a str, text: &'a str) -> Result<Self, DataError> {
        if text.len() > MOST_BYTES {
            return Err(DataError::TooLong { file: file.to_owned(), bytes: text.len() });
        }
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let header = lines.next().map_or("", |(_, line)| line).split(',').map(str::trim).collect();
        let lines = lines.map(|(at, line)| (at + 1, line.split(',').map(str::trim).collect()));
        Ok(Self { file, header, lines: lines.collect() })
    }

    /// Names of the columns.
    #[must_use]
    pub fn header(&self) -> &[&'a str] {
        &self.header
    }

    fn column(&self, name: &str) -> Result<usize, DataError> {
        self.header.iter().position(|h| *h == name).ok_or_else(|| DataError::NoColumn {
            file: self.file.to_owned(),
            column: name.to_owned(),
        })
    }

    /// What is wrong with a field of a row, counted from 0.
    pub(crate) fn bad_field(&self, row: usize, column: &str, value: &str) -> DataError {
        self.bad(self.lines.get(row).map_or(0, |(line, _)| *line), column, value)
    }

    fn bad(&self, line: usize, column: &str, value: &str) -> DataError {
        DataError::BadField {
            file: self.file.to_owned(),
            line,
            column: column.to_owned(),
            value: value.chars().take(40).collect(),
        }
    }

    /// The texts of a column.
    ///
    /// # Errors
    /// No such column, or a line without it.
    pub fn texts(&self, name: &str) -> Result<Vec<&'a str>, DataError> {
        let at = self.column(name)?;
        let field = |(line, fields): &(usize, Vec<&'a str>)| {
            fields.get(at).copied().ok_or_else(|| self.bad(*line, name, ""))
        };
        self.lines.iter().map(field).collect()
    }

    /// The numbers of a column, finite each.
    ///
    /// # Errors
    /// No such column, or a field that is no finite number.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>, DataError> {
        let texts = self.texts(name)?;
        let number = |(text, (line, _)): (&'a str, &(usize, Vec<&'a str>))| {
            let value = text.parse().ok().filter(|v: &f64| v.is_finite());
            value.ok_or_else(|| self.bad(*line, name, text))
        };
        texts.into_iter().zip(&self.lines).map(number).collect()
    }

    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// A time with its spread, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimingSpread {
    /// Median.
    pub median_ns: f64,
    /// First quartile.
    pub low_ns: f64,
    /// Third quartile.
    pub high_ns: f64,
}

/// A kernel at a size and block shape on a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaunchKey {
    /// The device.
    pub device: String,
    /// The kernel.
    pub kernel: String,
    /// The size.
    pub size: u64,
    /// Threads of a block along x and y.
    pub block: [u32; 2],
}

/// All variants of one launch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MeasuredLaunch {
    /// Times by variant, as [`crate::variant::KernelVariant`] writes them.
    pub times: BTreeMap<String, TimingSpread>,
}

/// Reads timings.
///
/// # Errors
/// Columns or numbers that are missing; a time that is not above zero.
pub fn read_timings(
    file: &str,
    text: &str,
) -> Result<BTreeMap<LaunchKey, MeasuredLaunch>, DataError> {
    let table = CsvTable::read(file, text)?;
    let (devices, kernels) = (table.texts("device")?, table.texts("kernel")?);
    let variants = table.texts("variant")?;
    let (sizes, x, y) =
        (table.numbers("size")?, table.numbers("block_x")?, table.numbers("block_y")?);
    let (median, low, high) =
        (table.numbers("median_ns")?, table.numbers("low_ns")?, table.numbers("high_ns")?);
    let mut launches: BTreeMap<LaunchKey, MeasuredLaunch> = BTreeMap::new();
    for at in 0..table.len() {
        if median[at] <= 0.0 {
            return Err(table.bad_field(at, "median_ns", &median[at].to_string()));
        }
        let key = LaunchKey {
            device: devices[at].to_owned(),
            kernel: kernels[at].to_owned(),
            size: sizes[at] as u64,
            block: [x[at] as u32, y[at] as u32],
        };
        let spread = TimingSpread { median_ns: median[at], low_ns: low[at], high_ns: high[at] };
        launches.entry(key).or_default().times.insert(variants[at].to_owned(), spread);
    }
    Ok(launches)
}

/// Figures of a device by name.
pub type DeviceFigures = BTreeMap<String, f64>;

/// Reads a device's profile: its name and figures.
///
/// # Errors
/// Columns or numbers that are missing.
pub fn read_profile(file: &str, text: &str) -> Result<(String, DeviceFigures), DataError> {
    let table = CsvTable::read(file, text)?;
    let (devices, names) = (table.texts("device")?, table.texts("name")?);
    let values = table.numbers("value")?;
    let device = devices.first().copied().unwrap_or_default().to_owned();
    Ok((device, names.iter().map(|n| (*n).to_owned()).zip(values).collect()))
}

/// Reads counters by launch.
///
/// # Errors
/// Columns or numbers that are missing.
pub fn read_counters(
    file: &str,
    text: &str,
) -> Result<BTreeMap<LaunchKey, DeviceFigures>, DataError> {
    let table = CsvTable::read(file, text)?;
    let (devices, kernels) = (table.texts("device")?, table.texts("kernel")?);
    let (sizes, x, y) =
        (table.numbers("size")?, table.numbers("block_x")?, table.numbers("block_y")?);
    let mut launches: BTreeMap<LaunchKey, DeviceFigures> = BTreeMap::new();
    let keys = ["device", "kernel", "size", "block_x", "block_y"];
    let names = table.header.iter().copied().filter(|name| !keys.contains(name));
    let columns: Vec<(&str, Vec<f64>)> =
        names.map(|name| Ok((name, table.numbers(name)?))).collect::<Result<_, DataError>>()?;
    for at in 0..table.len() {
        let key = LaunchKey {
            device: devices[at].to_owned(),
            kernel: kernels[at].to_owned(),
            size: sizes[at] as u64,
            block: [x[at] as u32, y[at] as u32],
        };
        let figures = columns.iter().map(|(name, values)| ((*name).to_owned(), values[at]));
        launches.insert(key, figures.collect());
    }
    Ok(launches)
}

/// What a problem of a benchmark needs: lengths, numbers, threads, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProblemShape {
    /// Elements of each array.
    pub elements: Vec<u64>,
    /// Scalars in the kernel's order; a `float` counts as its whole part.
    pub scalars: Vec<i64>,
    /// Threads along each axis.
    pub threads: [u32; 3],
}

/// Reads the shapes of problems by kernel and size. Lists within a field are divided by spaces.
///
/// # Errors
/// Columns or numbers that are missing.
pub fn read_shapes(
    file: &str,
    text: &str,
) -> Result<BTreeMap<(String, u64), ProblemShape>, DataError> {
    let table = CsvTable::read(file, text)?;
    let (kernels, sizes) = (table.texts("kernel")?, table.numbers("size")?);
    let list = |name: &str| -> Result<Vec<Vec<i64>>, DataError> {
        let texts = table.texts(name)?;
        let parse = |(text, (line, _)): (&str, &(usize, Vec<&str>))| {
            let numbers = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
            numbers.map_err(|_| table.bad(*line, name, text))
        };
        texts.into_iter().zip(&table.lines).map(parse).collect()
    };
    let (elements, scalars, threads) = (list("elements")?, list("scalars")?, list("threads")?);
    let mut shapes = BTreeMap::new();
    for at in 0..table.len() {
        let axis = |a: usize| threads[at].get(a).map_or(1, |t| (*t).clamp(1, 1 << 31) as u32);
        let shape = ProblemShape {
            elements: elements[at].iter().map(|e| e.unsigned_abs()).collect(),
            scalars: scalars[at].clone(),
            threads: [axis(0), axis(1), axis(2)],
        };
        shapes.insert((kernels[at].to_owned(), sizes[at] as u64), shape);
    }
    Ok(shapes)
}
