//! Prints what papers say in numbers, beside what the rules of Leasehold do in virtual time.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use leasehold_papers::{Plot, advise, by_use, chubby, popular, replay_1989, tiers, updates, volume_terms, yin};

/// Counts the messages of Leasehold's rules in virtual time, and prints them as a table beside the
/// numbers of a paper.
#[derive(Debug, Parser)]
#[command(name = "leasehold-papers")]
struct Options {
    /// What to replay.
    #[arg(value_enum, default_value_t = Replay::VolumeTerms)]
    replay: Replay,
    /// Decides when clients read and write.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seconds of virtual time are counted; by default, as long as the page in docs/papers
    /// says.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    seconds: Option<u64>,
    /// Also write a plot to this file, if there is one for the replay.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Replay {
    /// The load by the volume term, beside the formula of Gray and Cheriton.
    VolumeTerms,
    /// Gray and Cheriton 1989: the load by the term of a lease for each file.
    GrayCheriton,
    /// What fresh reads cost, from the same runs: the curves in the guide.
    TradeOff,
    /// Yin et al. 1999: the peak when an object that thousands have cached is written.
    PopularObject,
    /// Yin et al. 1999: the messages of each algorithm, by the reads in a visit.
    Visits,
    /// Chubby 2006: the share of heartbeats in a cell of 22,000 clients.
    Chubby,
    /// Chubby 2006: 90,000 sessions on one leader, and its processor time.
    ManySessions,
    /// `leasehold advise`: what it predicts for other object terms, beside what is counted then.
    Advise,
    /// Cao and Liu 1998, and Alex 1992: two tiers and adaptive terms.
    Tiers,
    /// Object terms that follow reads and writes, beside fixed ones, while their ratio changes.
    ByUse,
    /// Writes that bring the new value to the holders, beside writes that only recall.
    Updates,
}

fn main() -> ExitCode {
    let Options { replay, seed, seconds, plot } = Options::parse();
    let measured = |usual: Duration| seconds.map_or(usual, Duration::from_secs);
    let drawn: Option<Plot> = match replay {
        Replay::VolumeTerms => {
            print!("{}", volume_terms::tables(seed, measured(volume_terms::MEASURED)));
            None
        }
        Replay::GrayCheriton => {
            let points = replay_1989::points(seed, measured(replay_1989::MEASURED));
            print!("{}", replay_1989::table(&points));
            Some(replay_1989::plot(&points))
        }
        Replay::TradeOff => {
            let points = replay_1989::points(seed, measured(replay_1989::MEASURED));
            print!("{}", replay_1989::table(&points));
            Some(replay_1989::trade_off(&points))
        }
        Replay::PopularObject => {
            print!("{}", popular::table(&popular::runs(seed)));
            None
        }
        Replay::Visits => {
            let all = yin::all(seed);
            print!("{}", yin::tables(&all));
            Some(yin::plot(&all))
        }
        Replay::Chubby => {
            print!("{}", chubby::table(&chubby::runs(seed, measured(chubby::MEASURED))));
            None
        }
        Replay::ManySessions => {
            print!("{}", chubby::processor_time(&chubby::many_sessions(seed, measured(chubby::MEASURED))));
            None
        }
        Replay::Advise => {
            let measured = measured(advise::MEASURED);
            let cells = [advise::cells(seed, measured), advise::uneven_cells(seed, measured)].concat();
            print!("{}\n{}", advise::summary(&cells), advise::table(&cells));
            None
        }
        Replay::ByUse => {
            print!("{}", by_use::table(&by_use::runs(seed)));
            None
        }
        Replay::Updates => {
            print!("{}", updates::table(&updates::runs(seed, measured(updates::MEASURED))));
            None
        }
        Replay::Tiers => {
            let runs = tiers::runs(seed, measured(tiers::MEASURED));
            print!("{}", tiers::table(&runs));
            Some(tiers::plot(&runs))
        }
    };
    let written = match (plot, drawn) {
        (None, _) => Ok(()),
        (Some(file), Some(plot)) => {
            std::fs::write(&file, plot.svg()).map_err(|error| format!("{}: {error}", file.display()))
        }
        (Some(_), None) => Err("this replay has no plot".to_owned()),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasehold-papers: {error}");
            ExitCode::FAILURE
        }
    }
}
