"""Second implementations by another route: slow, from the definitions, and without the package.

| statistic | here |
|---|---|
| moments, isotropy measures, neighbours, TwoNN, Levina-Bickel, copies | `slow` |
| intervals of dimensions, Gride, ties, Gaussian control | `slow_dimension` |
| isotropy measures without a unit | `slow_measures` |
| second fundamental form | `slow_curvature` |
| tangents, elliptical law, its test | `slow_tangency` |
| energy share by row, by weight, by type; axes | `slow_energy` |
| jackknife-t with effective degrees of freedom, Welch | `slow_jackknife` |
| one rotation for both folds: `haar`, isotropy gain | `slow_rotations` |
| pairing by sequence, token and class; swaps; isotropy gain; semi-NMF | `slow_evidence` |
| exact p where arrangements are few: `pairing`, `axes` | `slow_arrangements` |
| γ, its quotient, Fieller's interval | `slow_premise` |
| Spearman's, Pearson's and partial correlations | `slow_correlation` |
| vectors by type | `slow_types` |
| `verify` | `slow_verify` |
"""
