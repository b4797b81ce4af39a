//! The control loop and its five ports: [`Clock`], [`Tracker`], [`Target`], [`Mover`], [`Journal`].
//! Live and simulated are two assemblies of the same engine. Makes no system call.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
mod config;
mod digest;
mod engine;
pub mod journal;
pub mod large;
mod ports;
mod quick_scan;
pub mod sample_length;
mod sample_map;
mod trackers;
mod write_schedule;
pub mod written;

pub use config::{Config, EngineParts};
pub use engine::{Engine, StepReport, StopReason};
pub use sample_map::{SampleMap, SamplePeriods, SampledAccess};
pub use terrace_policy::heat::{PageSamples, PageWrites, Prescan, RangeObservation, TouchEvenness};

pub use ports::{
    Clock, Journal, JournalError, Mapping, MappingKind, MoveFailure, MoveLimits, MoveOutcome,
    Mover, Observation, SampleRequest, Target, TargetChange, TargetError, TrackError, Tracker,
    TrackerInfo,
};
