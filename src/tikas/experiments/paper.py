"""The paper as data: every cell of Tables 1 to 4, the figure in its text, and the comparison in its appendix.

Recipes say what differs from the defaults of `Recipe`, which are the full ladder's for 100 labels of MNIST. Settings
that the paper's text leaves out are those of its authors' program. The paper ran 10 seeds for a figure, 40 for the
ladders at 100 labels, 4 on CIFAR-10, and 1 for the convolutional references with all labels.
"""

from dataclasses import replace

from tikas.experiments.cells import Cell, Published, Quotation, Table, row
from tikas.training.recipe import Recipe

BASELINE = Recipe(costs=(0,), noise=(0.3, 0.5))
SMALL_BASELINE = Recipe(network=("conv_small",), costs=(0,), noise=(0.3, 0.45), epochs=20, annealed=0.5)
CIFAR = Recipe(data="cifar10", preprocess="whiten", labels=4000, network=("conv_large",), activation="leaky_relu")
LARGE_BASELINE = replace(CIFAR, costs=(0,), epochs=20, annealed=0.5)
LARGE_GAMMA = replace(CIFAR, costs=(4,), epochs=70, annealed=0.14)
COMPARED = Recipe(labels=1000, costs=(2000, 20, 0.1))
AUTOENCODER = replace(BASELINE, costs=(1000, 0))
AUTOENCODER_1000 = replace(AUTOENCODER, labels=1000)

TABLE_1 = Table(
    "table1",
    "Table 1: permutation-invariant MNIST, 784-1000-500-250-250-250-10",
    ("100", "1000", "all"),
    (
        Quotation(
            "Semi-sup. Embedding",
            "Weston et al. 2012",
            {"100": Published(16.86), "1000": Published(5.73), "all": Published(1.5, places=1)},
        ),
        Quotation(
            "Transductive SVM (with all labels: SVM)",
            "from Weston et al. 2012",
            {"100": Published(16.81), "1000": Published(5.38), "all": Published(1.40)},
        ),
        Quotation(
            "MTC",
            "Rifai et al. 2011",
            {"100": Published(12.03), "1000": Published(3.64), "all": Published(0.81)},
        ),
        Quotation(
            "Pseudo-label",
            "Lee 2013",
            {"100": Published(10.49), "1000": Published(3.46)},
        ),
        Quotation(
            "AtlasRBF",
            "Pitelis et al. 2014",
            {"100": Published(8.10, 0.95), "1000": Published(3.68, 0.12), "all": Published(1.31)},
        ),
        Quotation(
            "DGN",
            "Kingma et al. 2014",
            {"100": Published(3.33, 0.14), "1000": Published(2.40, 0.02), "all": Published(0.96)},
        ),
        Quotation("DBM, Dropout", "Srivastava et al. 2014", {"all": Published(0.79)}),
        Quotation("Adversarial", "Goodfellow et al. 2015", {"all": Published(0.78)}),
        Quotation(
            "Virtual Adversarial",
            "Miyato et al. 2015",
            {"100": Published(2.12), "1000": Published(1.32), "all": Published(0.64, 0.03)},
        ),
        row(
            "Baseline: MLP, BN, Gaussian noise",
            Cell("table1/baseline/100", BASELINE, Published(21.74, 1.77, 10)),
            Cell("table1/baseline/1000", replace(BASELINE, labels=1000), Published(5.70, 0.20, 10)),
            Cell("table1/baseline/all", replace(BASELINE, labels="all"), Published(0.80, 0.03, 10)),
        ),
        row(
            "Γ-model (Ladder with only top-level cost)",
            Cell("table1/gamma/100", Recipe(costs=(0.5,)), Published(3.06, 1.44, 10)),
            Cell("table1/gamma/1000", Recipe(labels=1000, costs=(10,)), Published(1.53, 0.10, 10)),
            Cell("table1/gamma/all", Recipe(labels="all", costs=(2,)), Published(0.78, 0.03, 10)),
        ),
        row(
            "Ladder, only bottom-level cost",
            Cell("table1/bottom/100", Recipe(costs=(5000, 0)), Published(1.09, 0.32, 40), seeds=40),
            Cell("table1/bottom/1000", Recipe(labels=1000, costs=(2000, 0)), Published(0.90, 0.05, 10)),
            Cell("table1/bottom/all", Recipe(labels="all", costs=(2000, 0)), Published(0.59, 0.03, 10)),
        ),
        row(
            "Ladder, full",
            Cell("table1/full/100", Recipe(), Published(1.06, 0.37, 40), seeds=40),
            Cell(
                "table1/full/1000",
                Recipe(labels=1000, costs=(2000, 20, 0.1), noise=(0.3, 0.2)),
                Published(0.84, 0.08, 10),
            ),
            Cell(
                "table1/full/all",
                Recipe(labels="all", costs=(1000, 1, 0.01)),
                Published(0.57, 0.02, 10),
                seeds=40,
                note="the first ten seeds end at 0.617 ± 0.036 %, worse than published (p 0.003); the thirty that were "
                "run because of that, at 0.574 ± 0.048 %, a difference that chance seldom makes (p 0.007). It is not "
                "there a second time: the same forty once more, as one fleet and by a later revision, end at 0.582 ± "
                "0.044 %, their first ten at 0.595 ± 0.037 % (by themselves compatible with the published figure, p "
                "0.08) and the others at 0.577 ± 0.046 % (p 0.24; `table1-full-all-again.log`). We take it for chance: "
                "products are rounded otherwise in other company, and after 150 epochs a seed tells little of where it "
                "ends: from one run to the other errors correlate by 0.27, those of the first ten by -0.25. The table "
                "has the first ten and the thirty, and not the second run. "
                "bf16 and exact float32 are not told apart on held-out rows: 0.565 ± 0.101 % and 0.565 ± 0.109 % over "
                "ten seeds (`study/precision/all`). Neither other weights nor rung noise of 0.2 and 0.45 are better "
                "there (`study/full/all`, `study/noise/all`). An earlier program, with TF32 products, had seeds 0 to 9 "
                "end at 0.588 ± 0.042 % (`mnist-all-labels-tf32.log`, of which no revision is known)",
            ),
        ),
    ),
)

TEXT = Table(
    "text",
    "In the text: 50 labels of permutation-invariant MNIST",
    ("50",),
    (
        row(
            "Ladder, full",
            Cell("text/full/50", Recipe(labels=50, costs=(2000, 20, 0.1)), Published(1.62, 0.65, 10), seeds=40),
        ),
        row(
            "Ladder, full, weights chosen here",
            Cell(
                "text/full-chosen/50",
                Recipe(labels=50, costs=(5000, 50, 0.1)),
                seeds=40,
                against="text/full/50",
                note="weights are the best of `study/full-short/50`, which was begun because of what the paper's do on "
                "the test rows; three of its settings were run after this cell, and the choice stayed. No seed "
                "goes astray any more, but 11 of the 40 end between 2.1 and 2.3 %, the others between 0.7 and 1.0 %",
            ),
        ),
    ),
    note="With the paper's weights, seeds 5 and 23 end at 9.1 and 8.7 %, and 35 of the 40 between 0.7 and 1.1 %. After "
    "eight epochs in float32 on a CPU, where order and noise are drawn otherwise, seed 5 is at 9.4 % as well and "
    "takes 4 for 9 and 9 for 4 (seed 23 is at 3.2 %, seeds 0 and 1 at 2.4 and 2.5 %; `mnist-50-labels-8-epochs-"
    "cpu.log`): its labels or its first weights decide, not rounding.",
)

TABLE_2 = Table(
    "table2",
    "Table 2: convolutional networks on MNIST",
    ("100", "all"),
    (
        Quotation("EmbedCNN", "Weston et al. 2012", {"100": Published(7.75)}),
        Quotation("SWWAE", "Zhao et al. 2015", {"100": Published(9.17), "all": Published(0.71)}),
        row(
            "Baseline: Conv-Small, supervised only",
            Cell("table2/small-baseline/100", SMALL_BASELINE, Published(6.43, 0.84, 10)),
            Cell(
                "table2/small-baseline/all",
                replace(SMALL_BASELINE, labels="all"),
                Published(0.36, None, 1),
                seeds=1,
                note="the paper's is one run whose setting is not published; measured with that of 100 labels. 46 and "
                "36 errors in 10,000 rows are within chance by the rows alone (Fisher's exact test, p 0.32)",
            ),
        ),
        row("Conv-FC", Cell("table2/fc/100", Recipe(network=("conv_fc",)), Published(0.99, 0.15, 10))),
        row(
            "Conv-Small, Γ-model",
            Cell("table2/small-gamma/100", Recipe(network=("conv_small",), costs=(1,)), Published(0.89, 0.50, 10)),
        ),
        row(
            "Conv-Small, Γ-model, weight chosen here",
            Cell(
                "table2/small-gamma-chosen/100",
                Recipe(network=("conv_small",), costs=(0.2,)),
                against="table2/small-gamma/100",
                note="the weight is the best of `study/conv-small-gamma-short/100`, begun because of what the paper's "
                "does on the test rows",
            ),
        ),
        row(
            "Conv-Small, Γ-model, weight and epochs chosen here",
            Cell(
                "table2/small-gamma-short/100",
                Recipe(network=("conv_small",), costs=(0.2,), epochs=30),
                against="table2/small-gamma/100",
                note="with the study's 30 epochs too; measured because of the two cells above. In all three, seeds 0, "
                "2, 7 and 8 end below 0.9 % and seeds 4, 5 and 9 above 1.2 %: the seed has more say than the weight. "
                "But for the next cell's, other noise, learning rates and batches that got five seeds and 30 epochs or "
                "more were no better on held-out rows (`study/conv-small-gamma-noise/100`, `-longer`, `-batch`, "
                "`-kinds-longer`, `-kinds-long`, `-input`). With noise 0.5 on the input none of the five goes astray "
                "there, but all learn slowly: 1.43 ± 0.06 % after 30 epochs, 1.20 ± 0.04 % after 80. Other activations "
                "and denoisers had ten epochs and two bad seeds, and changed little: 2.00 to 2.16 %, where the "
                "published setting is at 2.19 % (`-kinds`)",
            ),
        ),
        row(
            "Conv-Small, Γ-model, weight, noise, rate and epochs chosen here",
            Cell(
                "table2/small-gamma-input/100",
                Recipe(network=("conv_small",), costs=(2,), noise=(0.45, 0.3), learning_rate=0.005, epochs=70),
                against="table2/small-gamma/100",
                note="noise 0.45 on the input, a weight of 2 and a rate of 0.005: the best of "
                "`study/conv-small-gamma-input-long/100`, of 70 epochs like this cell, where its five seeds are all "
                "near 0.98 ± 0.06 % of the held-out rows; with a weight of 1 seed 4 is at 1.66 %. Searched for because "
                "of the three cells above. Of the final seeds nine end between 0.81 and 0.88 %, 0.84 % in the mean, "
                "and seed 9 goes astray as it does in those cells, to 1.51 %",
            ),
        ),
        row(
            "Conv-Small, Γ-model, the same for 150 epochs",
            Cell(
                "table2/small-gamma-input-long/100",
                Recipe(network=("conv_small",), costs=(2,), noise=(0.45, 0.3), learning_rate=0.005),
                against="table2/small-gamma/100",
                note="with the paper's 150 epochs, as these lowered the error of the held-out rows to 0.91 ± 0.15 % "
                "(`study/conv-small-gamma-input-longest/100`, five seeds); rule and cell were in git before both runs. "
                "Nine of the final seeds end between 0.71 and 0.78 %, 0.75 % in the mean, and seed 9 at 1.38 %",
            ),
        ),
        row(
            "Conv-Small, full ladder",
            Cell(
                "table2/small-full/100",
                Recipe(network=("conv_small",), costs=(100, *[0.01] * 8, 1), epochs=30),
                against="table2/small-gamma/100",
                note="not in the paper, which left it to future work; weights are the best of "
                "`study/conv-small-between/100`, all of 30 epochs like this cell. Two settings got their last seeds "
                "after this cell's first five, and the choice stayed. It is the third: the test rows told that there "
                "was more to search. The second, 0.1 on the rungs between and 70 epochs, had seeds 1 and 3 end at 1.5 "
                "and 2.1 %, the others at 0.7 to 0.9 %; the first, 1000, 10, 1 and 100 epochs, ended at 1.7 to 2.4 %. "
                "Pooling rungs take ẑ over a deviation of at least 0.1 for their cost, as `MaxPool` says",
            ),
        ),
    ),
)

TABLE_3 = Table(
    "table3",
    "Table 3: convolutional networks on CIFAR-10, without augmentation",
    ("4000", "all"),
    (
        Quotation("All-Convolutional ConvPool-CNN-C", "Springenberg et al. 2014", {"all": Published(9.31)}),
        Quotation("Spike-and-Slab Sparse Coding", "Goodfellow et al. 2012", {"4000": Published(31.9, places=1)}),
        row(
            "Baseline: Conv-Large, supervised only",
            Cell("table3/large-baseline/4000", LARGE_BASELINE, Published(23.33, 0.61, 4), seeds=4),
            Cell(
                "table3/large-baseline/all",
                replace(LARGE_GAMMA, labels="all", costs=(0,)),
                Published(9.27, None, 1),
                seeds=1,
                note="the paper's is one run with dropout in place of noise, of a setting that is not published; "
                "measured with noise and the schedule of the Γ-model. 904 and 927 errors in 10,000 rows are within "
                "chance by the rows alone (Fisher's exact test, p 0.59)",
            ),
        ),
        row(
            "Conv-Large, Γ-model",
            Cell(
                "table3/large-gamma/4000",
                LARGE_GAMMA,
                Published(20.40, 0.47, 4),
                seeds=4,
                note="the fifth seed was run to time one alone on its GPU: 176 s",
            ),
        ),
    ),
)

TABLE_4 = Table(
    "table4",
    "Table 4: denoising functions, permutation-invariant MNIST, noise 0.3",
    ("100", "1000"),
    (
        row(
            "Proposed g: Gaussian z",
            Cell("table4/g/100", Recipe(), Published(1.06, 0.07, 10)),
            Cell("table4/g/1000", COMPARED, Published(1.03, 0.06, 10)),
        ),
        row(
            "Comparison g1: miniature MLP with z̃u",
            Cell("table4/g1/100", Recipe(denoiser="mlp"), Published(1.11, 0.07, 10)),
            Cell("table4/g1/1000", replace(COMPARED, denoiser="mlp"), Published(1.11, 0.06, 10)),
        ),
        row(
            "Comparison g2: no augmented term z̃u",
            Cell("table4/g2/100", Recipe(denoiser="no-product"), Published(2.03, 0.09, 10)),
            Cell("table4/g2/1000", replace(COMPARED, denoiser="no-product"), Published(1.70, 0.08, 10)),
        ),
        row(
            "Comparison g3: linear g but with z̃u",
            Cell("table4/g3/100", Recipe(denoiser="linear"), Published(1.49, 0.10, 10)),
            Cell("table4/g3/1000", replace(COMPARED, denoiser="linear"), Published(1.30, 0.08, 10)),
        ),
        row(
            "Comparison g4: only the mean depends on u",
            Cell("table4/g4/100", Recipe(denoiser="additive"), Published(2.90, 1.19, 10)),
            Cell("table4/g4/1000", replace(COMPARED, denoiser="additive"), Published(2.11, 0.45, 10)),
        ),
    ),
    note="The paper chose weights for each function by a search that it does not print. Measured with the weights of "
    "Table 1's full ladder for all of them.",
)

APPENDIX = Table(
    "appendix",
    "Appendix: an autoencoder, its decoder attached to one hidden rung",
    ("100", "1000"),
    (
        row(
            "Decoder on rung 1 (1000 units)",
            Cell("appendix/rung1/100", AUTOENCODER, seeds=3, attached=1, against="table1/baseline/100"),
            Cell("appendix/rung1/1000", AUTOENCODER_1000, seeds=3, attached=1, against="table1/baseline/1000"),
        ),
        row(
            "Decoder on rung 2 (500 units)",
            Cell("appendix/rung2/100", AUTOENCODER, seeds=3, attached=2, against="table1/baseline/100"),
            Cell("appendix/rung2/1000", AUTOENCODER_1000, seeds=3, attached=2, against="table1/baseline/1000"),
        ),
        row(
            "Decoder on rung 3 (250 units)",
            Cell("appendix/rung3/100", AUTOENCODER, seeds=3, attached=3, against="table1/baseline/100"),
            Cell("appendix/rung3/1000", AUTOENCODER_1000, seeds=3, attached=3, against="table1/baseline/1000"),
        ),
        row(
            "Decoder on rung 4 (250 units)",
            Cell("appendix/rung4/100", AUTOENCODER, seeds=3, attached=4, against="table1/baseline/100"),
            Cell("appendix/rung4/1000", AUTOENCODER_1000, seeds=3, attached=4, against="table1/baseline/1000"),
        ),
        row(
            "Decoder on rung 5 (250 units)",
            Cell("appendix/rung5/100", AUTOENCODER, seeds=3, attached=5, against="table1/baseline/100"),
            Cell("appendix/rung5/1000", AUTOENCODER_1000, seeds=3, attached=5, against="table1/baseline/1000"),
        ),
    ),
    note="The paper prints no figure and no weight: none of its runs was significantly better than the supervised "
    "model. Measured with the baseline's noise and a weight of 1000 on the squared error, and compared with the "
    "baseline as measured here. On rung 1 it is better than that, by 3.7 % at 100 labels and by 1.2 % at 1000; on "
    "rungs 2 and 3 it is no better and no worse, and above them it is worse, or no better.",
)

TABLES = (TABLE_1, TEXT, TABLE_2, TABLE_3, TABLE_4, APPENDIX)

CURVE = (
    Cell("curve/5", Recipe(epochs=5)),
    Cell("curve/10", Recipe(epochs=10)),
    Cell("curve/20", Recipe(epochs=20)),
    Cell("curve/50", Recipe(epochs=50)),
    Cell("curve/150", Recipe()),
)
"""Beside the paper: the full ladder at 100 labels, by its number of epochs. The last is Table 1's, and shares its
records."""
