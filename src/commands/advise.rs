//! `advise PATH`: what the terms of a volume cost, and what they should be.

use std::time::Duration;

use clap::Args;
use leasehold_client_cache::{
    NodePath, ObjectTerm,
    advice::{COUNTED_MIN, MeasuredWorkload, NoPrediction, Prediction, READS_MIN, Recommendation, VolumeAdvice},
};
use serde::Serialize;

use super::{object_term, volume::not_a_volume};
use crate::{
    arguments,
    context::Context,
    duration,
    exit::CommandFailure,
    failure::inspect_failure,
    output::{Table, Text},
};

/// With fewer writes, the advice says how uncertain it is.
const FEW_WRITES: u64 = 100;

/// `advise PATH`
#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    /// Topmost node of the volume
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
}

/// What was measured, what is predicted, and what to do. Rates are per second.
#[derive(Debug, Serialize)]
pub(crate) struct AdviceAnswer {
    path: NodePath,
    counted_for_ms: u64,
    /// Sessions with a lease on the volume.
    clients: u64,
    reads_per_s: f64,
    /// The share of the reads, from 0 to 1.
    from_memory: f64,
    writes_per_s: f64,
    writes: u64,
    recalls_per_write: f64,
    round_trip_ms: f64,
    /// From a recall to the consent, on average.
    consent_ms: f64,
    /// Messages for consistency, as counted.
    messages_per_s: f64,
    /// The present object term, as `volume set` reads it.
    object_term: String,
    /// Empty if there is too little to predict from.
    predictions: Vec<PredictionRow>,
    /// The object term to use; null without predictions.
    recommended: Option<String>,
    reason: String,
    #[serde(skip)]
    round_trip: Duration,
    #[serde(skip)]
    consent: Duration,
    #[serde(skip)]
    counted_for: Duration,
}

/// What is predicted for one object term.
#[derive(Debug, Serialize)]
struct PredictionRow {
    object_term: String,
    /// All messages: the sum of the next three.
    messages_per_s: f64,
    /// Reads that ask a server, and their answers.
    read_messages_per_s: f64,
    /// Recalls and consents.
    recall_messages_per_s: f64,
    /// Heartbeats, acquisitions and holder reports, and their answers.
    renewal_messages_per_s: f64,
    from_memory: f64,
    object_leases: f64,
    /// How long a write waits at most for a holder that died.
    write_delay_ms: u64,
    #[serde(skip)]
    write_delay: Duration,
}

impl From<&Prediction> for PredictionRow {
    fn from(prediction: &Prediction) -> Self {
        Self {
            object_term: object_term::text(prediction.term),
            messages_per_s: prediction.messages(),
            read_messages_per_s: prediction.reads,
            recall_messages_per_s: prediction.recalls,
            renewal_messages_per_s: prediction.renewals,
            from_memory: prediction.from_memory,
            object_leases: prediction.object_leases,
            write_delay_ms: duration::millis(prediction.write_delay),
            write_delay: prediction.write_delay,
        }
    }
}

impl From<VolumeAdvice> for AdviceAnswer {
    fn from(advice: VolumeAdvice) -> Self {
        let VolumeAdvice { path, settings, workload, predictions, recommendation } = advice;
        let MeasuredWorkload { counted_for, clients, reads, from_memory, writes, .. } = workload;
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        Self {
            path,
            counted_for_ms: duration::millis(counted_for),
            clients,
            reads_per_s: reads,
            from_memory,
            writes_per_s: writes,
            writes: workload.writes_counted,
            recalls_per_write: workload.recalls_per_write,
            round_trip_ms: millis(workload.round_trip),
            consent_ms: millis(workload.consent),
            messages_per_s: workload.messages,
            object_term: object_term::text(settings.object_term()),
            recommended: recommendation.map(|recommendation| object_term::text(recommended(&recommendation))),
            reason: match (&predictions, recommendation) {
                (Err(reason), _) => no_advice(*reason),
                (Ok(_), Some(recommendation)) => because(&recommendation, settings.object_term(), &workload),
                (Ok(_), None) => String::new(),
            },
            predictions: predictions.iter().flatten().map(PredictionRow::from).collect(),
            round_trip: workload.round_trip,
            consent: workload.consent,
            counted_for,
        }
    }
}

/// The term that is recommended.
fn recommended(recommendation: &Recommendation) -> ObjectTerm {
    match *recommendation {
        Recommendation::Keep { term, .. } | Recommendation::Change { term, .. } => term,
        Recommendation::Zero { .. } => ObjectTerm::Zero,
    }
}

fn because(recommendation: &Recommendation, present: ObjectTerm, workload: &MeasuredWorkload) -> String {
    let present = object_term::text(present);
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let reason = match *recommendation {
        Recommendation::Keep { saved, .. } => {
            format!("keep {present}: it saves {} of the messages that the best term saves", percent(saved))
        }
        Recommendation::Change { term, saved, saved_now } => format!(
            "set --object-term {}: it saves {} of the messages that the best term saves; {present} saves {}",
            object_term::text(term),
            percent(saved),
            percent(saved_now.max(0.0)),
        ),
        Recommendation::Zero { best, messages, messages_zero } => format!(
            "set --object-term 0: it needs {messages_zero:.2} messages a second, and the best other term, {}, needs \
             {messages:.2}; but then each read waits for a round trip",
            object_term::text(best),
        ),
    };
    match workload.writes_counted {
        0 => format!("{reason}. No write was counted, so the messages for recalls are not known"),
        writes @ 1..FEW_WRITES => {
            let uncertain = percent((writes as f64).sqrt().recip());
            format!("{reason}. From {writes} writes, the messages for recalls are uncertain by {uncertain}")
        }
        _ => reason,
    }
}

fn no_advice(reason: NoPrediction) -> String {
    let reason = match reason {
        NoPrediction::TooShort => {
            format!("the leader has counted for less than {}", duration::exact(COUNTED_MIN))
        }
        NoPrediction::TooFewReads { counted } => {
            format!("{counted} reads were counted, and {READS_MIN} are needed")
        }
        NoPrediction::NoObjectLeases => "with an object term of 0, the leader does not see which clients share which \
                                         nodes; set another, such as 10s, for some minutes"
            .to_owned(),
        NoPrediction::AdaptiveTerm => "the formula needs one object term, and it is adaptive".to_owned(),
        NoPrediction::NotTracked => "the formula needs --tracking objects".to_owned(),
        NoPrediction::WritesWait => "the formula needs --on-write recall".to_owned(),
        NoPrediction::SomeReadsGetLeases => "the formula needs --grants all".to_owned(),
        NoPrediction::FewLeasesEnded => {
            let cause = "with an infinite object term, hardly any lease has ended";
            format!("{cause}: the leader cannot tell which nodes are popular; set 1m for some minutes")
        }
        NoPrediction::LeaseLimit => {
            "leases were recalled for the lease limit, and the formula does not cover that; raise \
                                     --lease-limit, and ask again after a minute"
                .to_owned()
        }
        _ => "the formula does not cover these settings".to_owned(),
    };
    format!("no advice: {reason}")
}

impl Text for AdviceAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let rate = |rate: f64| format!("{rate:.2}");
        let mut measured = Table::new(&["MEASURED", "VALUE"]);
        for (what, value) in [
            ("for", duration::rough(self.counted_for)),
            ("clients", self.clients.to_string()),
            ("reads a second", rate(self.reads_per_s)),
            ("of them from memory", percent(self.from_memory)),
            ("writes a second", rate(self.writes_per_s)),
            ("recalls for each write", rate(self.recalls_per_write)),
            ("messages a second", rate(self.messages_per_s)),
            ("round trip", duration::short(self.round_trip)),
            ("wait for a consent", duration::short(self.consent)),
        ] {
            measured.row([what.to_owned(), value]);
        }
        measured.write(out);
        if !self.predictions.is_empty() {
            out.push(b'\n');
            let mut table = Table::new(&[
                "OBJECT TERM",
                "NOW",
                "MESSAGES/S",
                "READS",
                "RECALLS",
                "RENEWALS",
                "FROM MEMORY",
                "LEASES",
                "WRITE DELAY",
            ]);
            for row in &self.predictions {
                let is_present = row.object_term == self.object_term;
                table.row([
                    row.object_term.clone(),
                    if is_present { "*" } else { "" }.to_owned(),
                    rate(row.messages_per_s),
                    rate(row.read_messages_per_s),
                    rate(row.recall_messages_per_s),
                    rate(row.renewal_messages_per_s),
                    percent(row.from_memory),
                    format!("{:.1}", row.object_leases),
                    duration::exact(row.write_delay),
                ]);
            }
            table.write(out);
        }
        out.extend_from_slice(format!("\n{}\n", self.reason).as_bytes());
    }
}

impl AdviseArgs {
    pub(super) async fn run(self, context: &Context) -> Result<AdviceAnswer, CommandFailure> {
        let client = context.client().await?;
        match client.admin().advise(&self.path).await.map_err(|error| inspect_failure(&error))? {
            Some(advice) => Ok(advice.into()),
            None => Err(not_a_volume(client, &self.path).await),
        }
    }
}
