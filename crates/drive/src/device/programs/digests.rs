//! Digests of all input: `crc32c` (4 bytes, little endian) and `sha256` (32 bytes). They fill nothing before the last part.

use super::{OUTPUT_SHORT, keep};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use tapetum_kernels::checksum::crc32c_append;
use tapetum_kernels::sha256::Sha256;

pub struct Crc32cProgram;
pub struct Sha256Program;

impl Program for Crc32cProgram {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "crc32c", version: 1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        let Some(crc) = keep(context.task, || Some(0u32)) else { return (Status::InvalidField, [0; 2]) };
        *crc = context.inputs.iter().fold(*crc, |crc, input| crc32c_append(crc, input));
        let digest = crc.to_le_bytes();
        deliver(context, &digest)
    }
}

impl Program for Sha256Program {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "sha256", version: 1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        let Some(digest) = keep(context.task, || Some(Sha256::default())) else {
            return (Status::InvalidField, [0; 2]);
        };
        context.inputs.iter().for_each(|input| digest.update(input));
        let digest = digest.clone().finish();
        deliver(context, &digest)
    }
}

fn deliver(context: Context<'_>, digest: &[u8]) -> ProgramResult {
    if context.task.more_input {
        return (Status::Success, [0; 2]);
    }
    let bytes = digest.len() as u64;
    match context.output.get_mut(..digest.len()) {
        Some(output) => {
            output.copy_from_slice(digest);
            (Status::Success, [bytes, 0])
        }
        None => (OUTPUT_SHORT, [bytes, 0]),
    }
}
