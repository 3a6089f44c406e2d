//! Draws curves as SVG.

use plotters::prelude::*;

/// Some curves over the same axes.
#[derive(Debug, Clone)]
pub struct Plot {
    /// What the plot shows.
    pub title: &'static str,
    /// The name of the horizontal axis, with its unit.
    pub x: &'static str,
    /// The name of the vertical axis, with its unit.
    pub y: &'static str,
    /// The curves. Each dashed one has the colour of the next.
    pub curves: Vec<Curve>,
}

/// One curve.
#[derive(Debug, Clone)]
pub struct Curve {
    /// The name in the legend.
    pub name: String,
    /// The points, by increasing x.
    pub points: Vec<(f64, f64)>,
    /// Whether it is dashed: a formula, beside what was counted.
    pub is_dashed: bool,
}

impl Plot {
    /// The plot as SVG, 800 by 500.
    ///
    /// # Panics
    ///
    /// If there is no point.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, (800, 500)).into_drawing_area()).expect("a string takes all");
        svg
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: DrawingArea<B, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x_max = points().map(|(x, _)| *x).fold(0.0, f64::max);
        let y_max = points().map(|(_, y)| *y).fold(0.0, f64::max);
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..x_max, 0.0..y_max * 1.05)?;
        let label = |value: &f64| format!("{value}");
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x).y_desc(self.y).max_light_lines(1).x_label_formatter(&label).y_label_formatter(&label);
        mesh.draw()?;
        let mut colour = 0;
        for curve in &self.curves {
            let style = Palette99::pick(colour).stroke_width(2);
            let points = curve.points.iter().copied();
            if let [point] = curve.points[..] {
                chart.draw_series([Circle::new(point, 5, style.filled())])?
            } else if curve.is_dashed {
                chart.draw_series(DashedLineSeries::new(points, 6, 4, style))?
            } else {
                chart.draw_series(LineSeries::new(points, style))?
            }
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
            colour += usize::from(!curve.is_dashed);
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        area.present()
    }
}
