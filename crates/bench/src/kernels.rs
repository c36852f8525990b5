//! Programs of the benches' own: one of no work, kernels with a settable amount of it, and one that meters another.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tapetum_drive::program::{Context, Program, ProgramDescriptor, ProgramResult};
use tapetum_drive::{Drive, Env, Flash, LocalMemory, ProgramId, Status};

use crate::Failure;
use crate::process::thread_cpu_ns;
use crate::random::mix;

/// Does nothing, so that a run costs only the dispatch of a program.
pub struct NoWork;

impl Program for NoWork {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "no-work", version: 1, is_stream: false }
    }

    fn run(&self, _: Context<'_>) -> ProgramResult {
        (Status::Success, [0; 2])
    }
}

/// CPU that kernels took, by application.
#[derive(Default)]
pub struct ApplicationCpu([AtomicU64; ApplicationCpu::APPLICATIONS]);

impl ApplicationCpu {
    pub const APPLICATIONS: usize = 2;

    pub fn ns(&self) -> [u64; ApplicationCpu::APPLICATIONS] {
        self.0.each_ref().map(|cpu_ns| cpu_ns.load(Ordering::Relaxed))
    }
}

/// Passes its input on after as many steps of arithmetic as its parameters say.
pub struct BenchKernel {
    pub name: &'static str,
    pub cpu: Arc<ApplicationCpu>,
}

impl BenchKernel {
    /// For whom it works, and how long.
    pub fn parameters(application: u16, steps: u32) -> Vec<u8> {
        [&application.to_le_bytes()[..], &steps.to_le_bytes()].concat()
    }
}

impl Program for BenchKernel {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: self.name, version: 1, is_stream: true }
    }

    fn run(&self, Context { parameters, inputs, output, .. }: Context<'_>) -> ProgramResult {
        let begun_ns = thread_cpu_ns();
        let &[low, high, ref steps @ ..] = parameters else { return (Status::InvalidField, [0; 2]) };
        let (Ok(steps), application) = (<[u8; 4]>::try_from(steps), u16::from_le_bytes([low, high])) else {
            return (Status::InvalidField, [0; 2]);
        };
        black_box((0..u32::from_le_bytes(steps)).fold(u64::from(application), |sum, step| mix(sum ^ u64::from(step))));
        let mut filled = 0;
        for input in inputs {
            let Some(room) = output.get_mut(filled..filled + input.len()) else { return (Status::Program(1), [0; 2]) };
            room.copy_from_slice(input);
            filled += input.len();
        }
        if let Some(cpu_ns) = self.cpu.0.get(usize::from(application)) {
            cpu_ns.fetch_add(thread_cpu_ns() - begun_ns, Ordering::Relaxed);
        }
        (Status::Success, [filled as u64, 0])
    }
}

/// Another program, and the CPU that it took.
pub struct Metered {
    pub program: Box<dyn Program>,
    pub cpu_ns: Arc<AtomicU64>,
}

impl Program for Metered {
    fn descriptor(&self) -> ProgramDescriptor {
        self.program.descriptor()
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        let begun_ns = thread_cpu_ns();
        let result = self.program.run(context);
        self.cpu_ns.fetch_add(thread_cpu_ns() - begun_ns, Ordering::Relaxed);
        result
    }
}

/// A drive with these programs over some local memory, all of it there.
pub fn drive(flash: Arc<dyn Flash>, local_bytes: usize, programs: Vec<Box<dyn Program>>) -> Result<Drive, Failure> {
    let local = LocalMemory::new(local_bytes)?;
    local.touch();
    Ok(Drive::new(flash, local, programs, Env::system()))
}

pub fn program_named(drive: &Drive, name: &str) -> Result<ProgramId, Failure> {
    let programs = drive.identity().programs;
    let found = programs.iter().find(|program| program.name == name).map(|program| program.id);
    found.ok_or_else(|| format!("the drive has no program {name}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_drive::program::TaskState;

    #[test]
    fn a_kernel_passes_its_input_on_and_counts_for_its_application() {
        let cpu = Arc::new(ApplicationCpu::default());
        let kernel = BenchKernel { name: "k1", cpu: cpu.clone() };
        let run = |parameters: &[u8], output: &mut [u8]| {
            kernel.run(Context { parameters, inputs: &[b"ab", b"c"], output, task: &mut TaskState::default() })
        };
        let mut output = [0; 4];
        assert_eq!(run(&BenchKernel::parameters(1, 100_000), &mut output), (Status::Success, [3, 0]));
        assert_eq!(&output, b"abc\0");
        let [first, second] = cpu.ns();
        assert!(first == 0 && second > 10_000, "{second}");
        assert_eq!(run(&[1, 2, 3], &mut output).0, Status::InvalidField);
        assert_eq!(run(&BenchKernel::parameters(0, 1), &mut output[..2]).0, Status::Program(1));
    }
}
