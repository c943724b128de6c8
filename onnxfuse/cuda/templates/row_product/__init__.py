"""Template `row_product`: rows with reductions, such as a norm's, and the products that read them."""
