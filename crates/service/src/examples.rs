//! One request of each kind, for tests and for the documents that show what role each needs. Pure.

use crate::reply::ItemRow;
use crate::request::{
    Betweenness, CreateKeyspace, Freeze, GetFields, Increment, ListWanted, Query, QueryWords, Range, Request,
    RunPictures, ScanWanted, Side, Sources,
};

/// One of each, about the keyspace `keyspace`; its compilation ends with a new kind that is not here ([`is_there`]).
pub fn requests(keyspace: &str) -> Vec<Request> {
    let (name, key) = (keyspace.to_owned(), b"key".to_vec());
    let (words, range) = (QueryWords::default(), Range::default());
    let requests = vec![
        Request::Keyspaces { name: None, freeze: None },
        Request::Keyspaces { name: Some(name.clone()), freeze: None },
        Request::Format { keyspace: name.clone(), freeze: None },
        Request::CheckFormat { keyspace: name.clone(), fields: "key: id u32".into() },
        Request::Get { keyspace: name.clone(), key: key.clone() },
        Request::GetStamped { keyspace: name.clone(), key: key.clone() },
        Request::Scan {
            keyspace: name.clone(),
            freeze: None,
            range: range.clone(),
            limit: None,
            wanted: ScanWanted::Items,
        },
        Request::List { keyspace: name.clone(), freeze: None, prefix: Vec::new(), wanted: ListWanted::Keys },
        Request::Query(Query {
            keyspace: name.clone(),
            freeze: None,
            words: words.clone(),
            range,
            side: Side::Drive,
            application: None,
        }),
        Request::GetFields(GetFields {
            keyspace: name.clone(),
            key: key.clone(),
            words: words.clone(),
            side: Side::Drive,
            application: None,
        }),
        Request::Betweenness(Betweenness {
            keyspace: name.clone(),
            freeze: None,
            words,
            side: Side::Drive,
            application: None,
            is_undirected: false,
            is_normalized: false,
            sources: Sources::Automatic,
            seed: 1,
            top: 10,
            memory_bytes: 1 << 20,
            parts: 1,
        }),
        Request::RunPipeline {
            keyspace: name.clone(),
            key: key.clone(),
            pipeline: "fetch | sha256".into(),
            application: None,
        },
        Request::RunPictures(RunPictures {
            keyspace: name.clone(),
            pipeline: "fetch".into(),
            prefixes: Vec::new(),
            seed: 1,
            most: 1,
            application: None,
        }),
        Request::Locate { keyspace: name.clone(), key: key.clone() },
        Request::Put { keyspace: name.clone(), key: key.clone(), value: b"value".to_vec() },
        Request::Store { keyspace: name.clone(), items: Vec::new(), keeps_existing: false },
        Request::CompareAndSet { keyspace: name.clone(), item: ItemRow::default(), stamp: None },
        Request::Increment(Increment {
            keyspace: name.clone(),
            key: key.clone(),
            delta: 1,
            is_decrement: false,
            initial: None,
        }),
        Request::Delete { keyspace: name.clone(), key },
        Request::DeleteMany { keyspace: name.clone(), keys: Vec::new() },
        Request::CreateKeyspace(CreateKeyspace {
            name: name.clone(),
            is_ordered: false,
            block_device: None,
            may_exist: true,
        }),
        Request::SetFormat { keyspace: name.clone(), fields: None },
        Request::GrowBlockDevice { name: name.clone(), size_bytes: 1 << 30 },
        Request::RenameKeyspace { from: name.clone(), to: format!("{name}2") },
        Request::DropKeyspace { name },
        Request::Freeze(Freeze { owner: "example".into(), lasts_ms: 1000, flash_bytes_max: None }),
        Request::Freezes,
        Request::RenewFreeze { id: 1, lasts_ms: 1000 },
        Request::ReleaseFreeze { id: 1 },
        Request::Figures,
        Request::Check,
        Request::Inspect,
        Request::Grow { capacity_bytes: 64 << 20 },
        Request::ResizeMemory { memory_bytes: 1 << 30 },
        Request::Backup { to: "/nowhere/at/all".into(), anew: false },
        Request::Promote { force: false },
    ];
    assert!(requests.iter().all(is_there));
    requests
}

/// Always: a kind that is added has to be added here, and above.
fn is_there(request: &Request) -> bool {
    match request {
        Request::Keyspaces { .. }
        | Request::Format { .. }
        | Request::CreateKeyspace(_)
        | Request::DropKeyspace { .. }
        | Request::RenameKeyspace { .. }
        | Request::SetFormat { .. }
        | Request::CheckFormat { .. }
        | Request::GrowBlockDevice { .. }
        | Request::Get { .. }
        | Request::GetStamped { .. }
        | Request::CompareAndSet { .. }
        | Request::Increment(_)
        | Request::Put { .. }
        | Request::Store { .. }
        | Request::Delete { .. }
        | Request::DeleteMany { .. }
        | Request::Scan { .. }
        | Request::List { .. }
        | Request::Query(_)
        | Request::GetFields(_)
        | Request::Betweenness(_)
        | Request::RunPipeline { .. }
        | Request::RunPictures(_)
        | Request::Freeze(_)
        | Request::Freezes
        | Request::RenewFreeze { .. }
        | Request::ReleaseFreeze { .. }
        | Request::Backup { .. }
        | Request::Promote { .. }
        | Request::Figures
        | Request::Check
        | Request::Inspect
        | Request::Locate { .. }
        | Request::Grow { .. }
        | Request::ResizeMemory { .. } => true,
    }
}
