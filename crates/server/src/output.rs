//! Standard output, whose errors name it: where they are shown, the system's words alone ("No space left on device") could be about the
//! store's drive. No state.

use std::io::{self, Stdout, Write};

/// Standard output.
pub struct Output(Stdout);

pub fn stdout() -> Output {
    Output(io::stdout())
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// Writes all of it.
///
/// # Errors
/// Those of standard output.
pub fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = stdout();
    out.write_all(bytes)?;
    out.flush()
}

/// The error in words. One that asks for another try, and that of a pipe whose reader has gone, stay as they are.
fn named(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::Interrupted => error,
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}
