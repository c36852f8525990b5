//! Passwords that are given to a command: in a file, or typed. They are never words of the command line.

use std::error::Error;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use tapetum_access::password::{PASSWORD_BYTES_MAX, Password};
use tapetum_access::secret_file;
use zeroize::Zeroizing;

use crate::os;

/// How often the terminal asks for a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Another server knows it.
    #[cfg(feature = "flight")]
    Once,
    /// A new password: a slip would be kept.
    Twice,
}

/// The password in a file, of which `-` is standard input; without one, what somebody types.
///
/// # Errors
/// If there is none, or others may read the file.
pub fn password(file: Option<&Path>, asking: Asking) -> Result<Password, Box<dyn Error>> {
    let bytes = match file {
        Some(path) if path == Path::new("-") => read_line(io::stdin().lock())?,
        Some(path) => {
            let bytes =
                secret_file::read(path).map_err(|error| format!("the password in {}: {error}", path.display()))?;
            read_line(&bytes[..])?
        }
        None if io::stdin().is_terminal() => {
            let first = ask("Password: ")?;
            if asking == Asking::Twice && ask("Again: ")? != first {
                return Err("these were two different passwords: try again".into());
            }
            first
        }
        None => {
            return Err(
                "there is no terminal to ask for the password: give --password-file FILE, or - for standard input"
                    .into(),
            );
        }
    };
    Ok(Password::new(&bytes)?)
}

/// The line that is typed, which the terminal does not show. A signal that stops the command leaves the terminal as it was.
fn ask(prompt: &str) -> Result<Zeroizing<Vec<u8>>, Box<dyn Error>> {
    let (terminal, mut shown, signals) = (io::stdin(), io::stderr(), os::termination_signals()?);
    let before = tcgetattr(&terminal)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    write!(shown, "{prompt}")?;
    tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
    let typed = match os::wait_for_input_or_signal(terminal.as_fd(), signals.as_fd()) {
        Ok(None) => read_line(terminal.lock()),
        Ok(Some(signal)) => Err(format!("stopped by {}: nothing was changed", os::signal_name(signal)).into()),
        Err(error) => Err(error.into()),
    };
    // The rest of a line that is too long is nothing for the shell.
    tcsetattr(&terminal, OptionalActions::Flush, &before)?;
    os::let_termination_signals_through()?;
    writeln!(shown)?;
    typed
}

/// Bytes up to the end of the line.
fn read_line(mut input: impl Read) -> Result<Zeroizing<Vec<u8>>, Box<dyn Error>> {
    // Room for all of it: a buffer that grows would leave copies behind.
    let mut line = Zeroizing::new(Vec::with_capacity(PASSWORD_BYTES_MAX + 2));
    let mut byte = Zeroizing::new([0]);
    while line.len() < line.capacity() && input.read(&mut byte[..])? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}
