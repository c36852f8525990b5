//! The identity of a client of block devices, and those that it may use.
//!
//! | client | is |
//! |---|---|
//! | without a users file | everybody, who may use all |
//! | over TLS, with a certificate | the user whom the certificate names |
//! | at a Unix socket, of the server's user or root | the owner, who may use all |
//! | any other | nobody |
//!
//! Owned by one client's door.

use std::sync::Arc;

use tapetum_access::gate::Gate;
use tapetum_access::identity::Identity;
use tapetum_service::request::{Role, Scope};

use super::exports::Export;
use crate::doors::connection::Client;

pub enum NbdAccess {
    Everything,
    Nothing,
    User(Identity),
}

impl NbdAccess {
    /// The access of a client that has said all that it says about itself.
    pub fn of(gate: Option<&Arc<Gate>>, client: &Client) -> NbdAccess {
        let Some(gate) = gate else { return NbdAccess::Everything };
        if client.is_owner() {
            return NbdAccess::Everything;
        }
        let identity = client.certificate_name().and_then(|name| gate.of_certificate(name));
        identity.map_or(NbdAccess::Nothing, NbdAccess::User)
    }

    /// The exports that the client may use. To others it is as if the rest were not there.
    pub fn offered(&mut self, exports: &Arc<[Export]>) -> Arc<[Export]> {
        match self {
            NbdAccess::Everything => Arc::clone(exports),
            NbdAccess::Nothing => Arc::default(),
            NbdAccess::User(identity) => exports.iter().filter_map(|export| allowed(identity, export)).collect(),
        }
    }

    /// Looks rights over the export in use up again, if users were read again. Returns whether it may be used on.
    pub fn refresh(&mut self, export: &mut Export) -> bool {
        match self {
            NbdAccess::User(identity) if !identity.is_new() => self.look_up(export),
            _ => true,
        }
    }

    /// Looks rights over the export in use up: it may have another name now. Returns whether it may be used on.
    pub fn look_up(&mut self, export: &mut Export) -> bool {
        let NbdAccess::User(identity) = self else { return true };
        match allowed(identity, export) {
            Some(now) => {
                *export = now;
                true
            }
            None => false,
        }
    }
}

fn allowed(identity: &mut Identity, export: &Export) -> Option<Export> {
    let scope = Scope::Keyspace(&export.name);
    let may_write = identity.may(Role::Write, scope);
    let is_read_only = export.is_read_only || !may_write;
    (may_write || identity.may(Role::Read, scope)).then(|| Export { is_read_only, ..export.clone() })
}
