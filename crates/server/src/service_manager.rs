//! Tells the service manager named by NOTIFY_SOCKET how the server is; systemd sets that for a unit of `Type=notify`. One datagram a
//! message; never waits. No state.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const SOCKET: &str = "NOTIFY_SOCKET";

/// Whether there is one: SIGHUP is then its order to reload, and no terminal that closes.
pub fn is_there() -> bool {
    std::env::var_os(SOCKET).is_some()
}

/// Clients can connect; `status` says what is served, in a line.
pub fn tell_ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}"));
}

pub fn tell_stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!("the service manager was not told {state:?} at {}: {error}", socket.display());
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    // A name that begins with @ is in no file system.
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_by_path_and_by_abstract_name() {
        let name = format!("tapetum-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let by_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (listener, socket) in [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str().to_owned()),
            (UnixDatagram::bind_addr(&by_name).unwrap(), format!("@{name}").into()),
        ] {
            send(&socket, "READY=1").unwrap();
            let mut message = [0; 64];
            let length = listener.recv(&mut message).unwrap();
            assert_eq!(&message[..length], b"READY=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str(), "READY=1").is_err());
    }
}
