"""The mathematics once more, slowly: loops over tokens, written from the papers' equations. Nothing here imports mixlab.

A padded token does not exist for these references: they loop over the real tokens alone, whose place is their rank among them.
Everything is made of differentiable torch scalars and vectors, so that gradients can be compared too.
"""
