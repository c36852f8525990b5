//! Compute units that die: in place of what they were to do, they leave a part of it, and their command says that it is lost.
//!
//! It strikes the programs over data nodes, which ordered keyspaces need for all that they do.

use std::sync::{Arc, Mutex, PoisonError};
use tapetum_drive::SplitMix64;
use tapetum_drive::program::{Context, Program, ProgramDescriptor, ProgramResult};
use tapetum_drive::{Status, programs};

/// Clones share what they are told. Used by one thread, as all of a run.
#[derive(Clone)]
pub struct DyingUnits(Arc<Mutex<Deaths>>);

struct Deaths {
    random: SplitMix64,
    /// One of so many runs of programs is a unit's last; 0: none is.
    one_in: u64,
    died: u64,
}

impl DyingUnits {
    pub fn new(random: SplitMix64) -> DyingUnits {
        DyingUnits(Arc::new(Mutex::new(Deaths { random, one_in: 0, died: 0 })))
    }

    /// From now on, of so many runs of programs one is a unit's last; 0: none is. Returns how many units died since the last call.
    pub fn set(&self, one_in: u64) -> u64 {
        let mut deaths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        deaths.one_in = one_in;
        std::mem::take(&mut deaths.died)
    }

    /// The drive's programs, run by units that die.
    pub fn programs(&self) -> Vec<Box<dyn Program>> {
        let dying = |program: Box<dyn Program>| match program.descriptor().name.starts_with("node-") {
            true => Box::new(Mortal { program, units: self.clone() }),
            false => program,
        };
        programs::built_in().into_iter().map(dying).collect()
    }

    /// Which part of its output a unit leaves that dies now, in 1/256.
    fn dies(&self) -> Option<usize> {
        let mut deaths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let one_in = deaths.one_in;
        if one_in == 0 || !deaths.random.one_in(one_in) {
            return None;
        }
        deaths.died += 1;
        Some(deaths.random.below(257) as usize)
    }
}

struct Mortal {
    program: Box<dyn Program>,
    units: DyingUnits,
}

impl Program for Mortal {
    fn descriptor(&self) -> ProgramDescriptor {
        self.program.descriptor()
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        let Some(part) = self.units.dies() else { return self.program.run(context) };
        let Context { parameters, inputs, output, task } = context;
        let before = output.to_vec();
        self.program.run(Context { parameters, inputs, output: &mut *output, task });
        let done = output.len() * part / 256;
        output[done..].copy_from_slice(&before[done..]);
        (Status::UnitLost, [0; 2])
    }

    fn prefetch(&self, round: usize, parameters: &[u8], inputs: &[&[u8]]) {
        self.program.prefetch(round, parameters, inputs);
    }
}
