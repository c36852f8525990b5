//! Arguments of a compute request as the operands of a program, by place.
//!
//! The last memory is the output, those before it are inputs. A value right behind a memory is that range's length in bytes; without
//! one, the range goes to the end of its memory. All other values are the program's parameters, little endian, one behind the other.

use crate::handles::Handle;
use crate::request::Argument;
use crate::types::CsStatus;

/// A range of one device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    pub memory: Handle,
    pub offset: u32,
    pub bytes: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Operands {
    pub parameters: Vec<u8>,
    pub inputs: Vec<MemoryRange>,
    pub output: MemoryRange,
}

impl Operands {
    /// `bytes_of` says how long a memory is, if there is one.
    pub fn new(arguments: &[Argument], bytes_of: impl Fn(Handle) -> Option<u32>) -> Result<Operands, CsStatus> {
        let (mut parameters, mut ranges) = (Vec::new(), Vec::<MemoryRange>::new());
        let mut is_behind_memory = false;
        for argument in arguments {
            let length = match *argument {
                Argument::Memory(place) => {
                    let bytes = bytes_of(place.memory).ok_or(CsStatus::UnknownMemory)?;
                    let rest = u64::from(bytes).checked_sub(place.offset).ok_or(CsStatus::InvalidLength)?;
                    let (offset, bytes) = (place.offset as u32, rest as u32);
                    ranges.push(MemoryRange { memory: place.memory, offset, bytes });
                    is_behind_memory = true;
                    continue;
                }
                Argument::Value32(value) if is_behind_memory => u64::from(value),
                Argument::Value64(value) if is_behind_memory => value,
                Argument::Value32(value) => {
                    parameters.extend(value.to_le_bytes());
                    continue;
                }
                Argument::Value64(value) => {
                    parameters.extend(value.to_le_bytes());
                    continue;
                }
            };
            let Some(range) = ranges.last_mut() else { unreachable!("a memory is before this value") };
            let length = u32::try_from(length).ok().filter(|length| *length <= range.bytes);
            range.bytes = length.ok_or(CsStatus::InvalidLength)?;
            is_behind_memory = false;
        }
        let output = ranges.pop().ok_or(CsStatus::InvalidArg)?;
        Ok(Operands { parameters, inputs: ranges, output })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::MemoryPlace;

    fn memory(number: u64, offset: u64) -> Argument {
        Argument::Memory(MemoryPlace { memory: Handle(number), offset })
    }

    fn operands(arguments: &[Argument]) -> Result<Operands, CsStatus> {
        Operands::new(arguments, |memory| (memory.0 < 9).then_some(100))
    }

    #[test]
    fn the_last_memory_is_the_output() {
        let range = |number, offset, bytes| MemoryRange { memory: Handle(number), offset, bytes };
        let given = [memory(1, 10), Argument::Value32(20), memory(2, 60)];
        let whole = Operands { parameters: vec![], inputs: vec![range(1, 10, 20)], output: range(2, 60, 40) };
        assert_eq!(operands(&given), Ok(whole));
        let given = [Argument::Value32(3), memory(1, 0), memory(1, 50), Argument::Value64(8), Argument::Value32(4)];
        let whole = Operands {
            parameters: vec![3, 0, 0, 0, 4, 0, 0, 0],
            inputs: vec![range(1, 0, 100)],
            output: range(1, 50, 8),
        };
        assert_eq!(operands(&given), Ok(whole));
    }

    #[test]
    fn ranges_beyond_their_memory_are_refused() {
        assert_eq!(operands(&[]), Err(CsStatus::InvalidArg));
        assert_eq!(operands(&[Argument::Value32(1)]), Err(CsStatus::InvalidArg));
        assert_eq!(operands(&[memory(9, 0)]), Err(CsStatus::UnknownMemory));
        assert_eq!(operands(&[memory(1, 101)]), Err(CsStatus::InvalidLength));
        assert_eq!(operands(&[memory(1, u64::MAX)]), Err(CsStatus::InvalidLength));
        assert_eq!(operands(&[memory(1, 50), Argument::Value32(51)]), Err(CsStatus::InvalidLength));
        assert_eq!(operands(&[memory(1, 0), Argument::Value64(1 << 32 | 1)]), Err(CsStatus::InvalidLength));
    }
}
