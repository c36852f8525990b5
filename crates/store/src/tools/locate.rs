//! Finds a key: in a hashed keyspace, in a write buffer, or in which bytes of which segment; in an ordered one, in which data node. For tools; a get
//! has a faster path.

use crate::api::store::Store;
use tapetum_base::engine::key_place::Location;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::{Io, run};
use tapetum_drive::Purpose;

/// Finds where a key of a keyspace lives in an open store.
pub fn locate(store: &Store, keyspace: KeyspaceRef, key: &[u8]) -> Result<Location, Error> {
    let base = store.base();
    base.refuse_dropped(keyspace)?;
    if keyspace.is_grouped() {
        return Err(Error::Keyspace(KeyspaceError::IsGrouped));
    }
    let io = Io::new(base.drive.queue_pair(16).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Check);
    let kind = keyspace.kind();
    let no_engine = || Error::Keyspace(KeyspaceError::OtherKind { kind });
    let engine = store.engine(kind).ok_or_else(no_engine)?;
    let finding = engine.clone().locate(io.clone(), keyspace.id, key.to_vec());
    let place = run(&io, finding, || false).ok_or_else(|| Error::Io("the drive stopped answering".into()))??;
    let hash = base.hasher.hash(keyspace.id, key);
    let partition = (kind == KeyspaceKind::Hashed).then(|| hash.partition(base.geometry.partition_bits) as u64);
    Ok(Location { hash: hash.0, partition, place })
}
