//! The needs of a binary: what it asks of the system that it runs on.

use crate::Failure;

/// The program header that names the loader of shared libraries.
const PT_INTERP: u32 = 3;
const HEADER_BYTES: usize = 64;

/// The packages that a package must depend on.
#[derive(Debug, PartialEq, Eq)]
pub enum Libraries {
    /// The binary was linked whole.
    None,
    /// glibc of this version at least: 2.MINOR.
    Glibc { minor: u32 },
}

/// Reads a 64-bit little-endian ELF file.
pub fn libraries(file: &[u8]) -> Result<Libraries, Failure> {
    if !file.starts_with(b"\x7fELF\x02\x01") || file.len() < HEADER_BYTES {
        return Err("the binary is no 64-bit little-endian ELF file".into());
    }
    let (start, size, count) = (number(file, 32, 8)?, number(file, 54, 2)?, number(file, 56, 2)?);
    for index in 0..count {
        let at = index.checked_mul(size).and_then(|offset| offset.checked_add(start)).ok_or(CUT)?;
        if number(file, at, 4)? == PT_INTERP as usize {
            return Ok(Libraries::Glibc { minor: glibc_minor(file) });
        }
    }
    Ok(Libraries::None)
}

const CUT: &str = "the binary's ELF headers are cut short";

fn number(file: &[u8], at: usize, bytes: usize) -> Result<usize, Failure> {
    let end = at.checked_add(bytes).ok_or(CUT)?;
    let field = file.get(at..end).ok_or(CUT)?;
    Ok(field.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// The highest version among the names of versions that the loader looks for, such as `GLIBC_2.34`.
fn glibc_minor(file: &[u8]) -> u32 {
    let names = file.windows(GLIBC.len()).enumerate().filter(|(_, window)| *window == GLIBC);
    let minors = names.filter_map(|(at, _)| {
        let digits = file[at + GLIBC.len()..].iter().take_while(|byte| byte.is_ascii_digit()).take(3);
        let digits: String = digits.map(|byte| char::from(*byte)).collect();
        digits.parse().ok()
    });
    minors.max().unwrap_or(0)
}

const GLIBC: &[u8] = b"GLIBC_2.";

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(kind: u32, tail: &[u8]) -> Vec<u8> {
        let mut file = vec![0; HEADER_BYTES];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (file[32], file[54], file[56]) = (64, 56, 1);
        file.extend(kind.to_le_bytes());
        file.extend([0; 52]);
        file.extend(tail);
        file
    }

    #[test]
    fn a_loader_is_named_or_nothing_is_needed() {
        let names = b"GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0";
        assert_eq!(libraries(&elf(PT_INTERP, names)).unwrap(), Libraries::Glibc { minor: 34 });
        assert_eq!(libraries(&elf(1, names)).unwrap(), Libraries::None);
    }

    #[test]
    fn a_file_that_is_cut_short_is_an_error() {
        let whole = elf(1, b"");
        assert!((0..whole.len() - 53).all(|bytes| libraries(&whole[..bytes]).is_err()));
    }
}
