//! Physical constants and properties of materials, in SI units.

/// Vacuum permittivity, F/m.
pub const VACUUM_F_PER_M: f64 = 8.854e-12;
/// Relative permittivity of silicon dioxide (Sze, "Physics of Semiconductor Devices", appendix H).
pub const OXIDE_PERMITTIVITY: f64 = 3.9;
/// Resistivity of copper at 20 C, ohm m (CRC Handbook).
pub const COPPER_OHM_M: f64 = 1.68e-8;
/// Relative change of copper's resistivity per kelvin (CRC Handbook).
pub const COPPER_PER_K: f64 = 3.9e-3;
/// Resistivity of tin-silver solder, Sn96.5Ag3.5, ohm m (alasir.com, "Solder Alloys").
pub const SOLDER_OHM_M: f64 = 1.23e-7;
/// Thermal conductivity of silicon, W/(m K) (the value that public simulators use; 148 at 300 K,
/// CRC Handbook). At 85 C it is about 20% lower.
pub const SILICON_W_PER_MK: f64 = 148.0;
/// Thermal conductivity of copper, W/(m K) (CRC Handbook).
pub const COPPER_W_PER_MK: f64 = 401.0;
/// Thermal conductivity of the insulating layers on a die, W/(m K) (the value that public
/// simulators use for the wiring layers).
pub const INSULATOR_W_PER_MK: f64 = 1.5;
/// Thermal conductivity of mold compound, W/(m K): ours, usual filled epoxies have 0.7 to 1.
pub const MOLD_W_PER_MK: f64 = 0.9;
/// Thermal conductivity of the interface material below the lid, W/(m K): ours, greases and
/// gels have 3 to 8.
pub const INTERFACE_W_PER_MK: f64 = 4.0;
/// Underfill between microbumps, W/(m K), and what a unit of bump area share adds to it. From the
/// measured resistance of bump layers in four-high stacks (E. Colgan et al., "Measurement of
/// microbump thermal resistance in 3D chip stacks", SEMI-THERM 2012: 25 um bumps, 16.1 um high; 8.0
/// K mm2/W at 50 um pitch, 19.0 at 100): the line through these two. At 71 um it gives 13.1 where
/// 15.5 was measured, 15% less.
pub const UNDERFILL_W_PER_MK: f64 = 0.46;
/// See [`UNDERFILL_W_PER_MK`]; well below solder's 50 to 60 since the wiring layers are in it.
pub const BUMP_W_PER_MK: f64 = 7.9;
/// Heat capacity of silicon, J/(m3 K) (CRC Handbook: 700 J/(kg K), 2330 kg/m3).
pub const SILICON_J_PER_M3K: f64 = 1.63e6;
/// Heat capacity of copper, J/(m3 K) (CRC Handbook).
pub const COPPER_J_PER_M3K: f64 = 3.44e6;
/// Heat capacity of underfill and mold compound, J/(m3 K): ours, usual epoxies.
pub const POLYMER_J_PER_M3K: f64 = 1.9e6;
